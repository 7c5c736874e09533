#include "services/server/http2_frames.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/http2_bytes.h"

namespace tandem {
namespace {

using Kind = Http2Piece::Kind;
using Sender = Http2Frames::Sender;

// What is passed on if bytes come in pieces of `step`; what is not yet is kept, as the gate does.
struct Passed {
  std::string bytes;
  std::vector<uint32_t> begun, ended;
  size_t most_kept = 0;
  bool broken = false;
};

Passed Pass(Sender sender, const std::string& sent, size_t step) {
  Http2Frames frames(sender);
  Passed passed;
  std::string kept;
  for (size_t at = 0; at < sent.size(); at += step) {
    kept += sent.substr(at, step);
    while (true) {
      const Http2Piece piece = frames.Peek(kept);
      // To look again changes nothing.
      EXPECT_EQ(frames.Peek(kept).bytes, piece.bytes);
      passed.broken = piece.kind == Kind::kBroken;
      if (passed.broken) return passed;
      if (piece.kind == Kind::kMore) break;
      if (piece.kind == Kind::kHeaders) passed.begun.push_back(piece.stream);
      if (piece.ends) passed.ended.push_back(piece.stream);
      frames.Take(piece);
      passed.bytes += kept.substr(0, piece.bytes);
      kept.erase(0, piece.bytes);
    }
    passed.most_kept = std::max(passed.most_kept, kept.size());
  }
  return passed;
}

TEST(Http2FramesTest, AClientsBytesPassWhereverTheyAreCut) {
  const std::string block = HeaderBlock("/test.Gate/Say");
  const std::string padded = std::string(1, 3) + block + std::string(3, '\0');
  const std::string sent =
      std::string(kHttp2Preface) + Http2Frame(kSettingsFrame, 0) +
      Http2Frame(kHeadersFrame, 1, block, kEndHeadersFlag) +
      Http2Frame(kHeadersFrame, 3, padded, kEndHeadersFlag | kPaddedFlag) +
      Http2Frame(kDataFrame, 1, std::string(300, 'd')) + Http2Frame(kDataFrame, 3, "") +
      Http2Frame(kHeadersFrame, 5, block.substr(0, 10)) +
      Http2Frame(kContinuationFrame, 5, block.substr(10, 5)) +
      Http2Frame(kContinuationFrame, 5, block.substr(15), kEndHeadersFlag) +
      Http2Frame(kDataFrame, 5, std::string(2, 'd'), kEndStreamFlag) + ResetOf(3) +
      Http2Frame(kHeadersFrame, 1, block, kEndHeadersFlag | kEndStreamFlag) +
      Http2Frame(kPingFrame, 0, std::string(8, 'p'));
  for (size_t step = 1; step <= sent.size(); ++step) {
    const Passed passed = Pass(Sender::kClient, sent, step);
    ASSERT_FALSE(passed.broken) << step;
    EXPECT_EQ(passed.bytes, sent) << step;
    EXPECT_EQ(passed.begun, (std::vector<uint32_t>{1, 3, 5, 1})) << step;
    EXPECT_EQ(passed.ended, std::vector<uint32_t>{3}) << step;  // Its own END_STREAM ends nothing.
  }
}

TEST(Http2FramesTest, OnlyHeaderBlocksAreKeptUntilTheyAreWhole) {
  const std::string hello = std::string(kHttp2Preface);
  const std::string data = hello + Http2Frame(kDataFrame, 1, std::string(5000, 'd'));
  EXPECT_LT(Pass(Sender::kClient, data, 1).most_kept, kHttp2Preface.size());
  const std::string headers = Http2Frame(kHeadersFrame, 1, std::string(5000, 'h'));
  const Passed unfinished = Pass(Sender::kClient, hello + headers, 1);
  EXPECT_EQ(unfinished.bytes, hello);
  EXPECT_EQ(unfinished.most_kept, headers.size());
  EXPECT_LT(Pass(Sender::kServer, headers, 1).most_kept, size_t{9});
}

TEST(Http2FramesTest, AServersStreamsEndByEndStreamAndReset) {
  const std::string sent = Http2Frame(kSettingsFrame, 0) +
                           Http2Frame(kHeadersFrame, 1, "h", kEndHeadersFlag) +
                           Http2Frame(kDataFrame, 1, "data") +
                           Http2Frame(kHeadersFrame, 3, "h", kEndHeadersFlag | kEndStreamFlag) +
                           Http2Frame(kDataFrame, 5, "d", kEndStreamFlag) +
                           Http2Frame(kHeadersFrame, 1, "h", kEndStreamFlag) +
                           Http2Frame(kContinuationFrame, 1, "h", kEndHeadersFlag) + ResetOf(7) +
                           // The same bits mean something else elsewhere.
                           Http2Frame(kSettingsFrame, 0, "", kEndStreamFlag) +
                           Http2Frame(kPingFrame, 0, std::string(8, 'p'), kEndStreamFlag);
  for (size_t step = 1; step <= sent.size(); ++step) {
    const Passed passed = Pass(Sender::kServer, sent, step);
    EXPECT_EQ(passed.bytes, sent) << step;
    EXPECT_EQ(passed.ended, (std::vector<uint32_t>{3, 5, 1, 7})) << step;
  }
}

TEST(Http2FramesTest, AServersHeaderBlockIsNoPlaceForAnotherFrame) {
  const std::string first = Http2Frame(kSettingsFrame, 0),
                    block = Http2Frame(kHeadersFrame, 1, "h"),
                    more = Http2Frame(kContinuationFrame, 1, "h"),
                    last = Http2Frame(kContinuationFrame, 1, "h", kEndHeadersFlag);
  const std::string sent = first + block + more + last + Http2Frame(kDataFrame, 1, "data");
  const std::set<size_t> places{first.size(), sent.size(),
                                first.size() + block.size() + more.size() + last.size()};
  Http2Frames frames(Sender::kServer);
  EXPECT_FALSE(frames.between_frames());
  for (size_t at = 0; at < sent.size();) {
    const size_t begun = at;
    Http2Piece piece;
    for (size_t size = 1; piece.kind == Kind::kMore; ++size) {
      piece = frames.Peek(sent.substr(begun, size));
    }
    frames.Take(piece);
    at += piece.bytes;
    EXPECT_EQ(frames.between_frames(), places.contains(at)) << at;
  }
}

TEST(Http2FramesTest, WhatDoesNotBeginLikeHttp2IsNone) {
  for (const std::string text : {"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/1.1\r\n", "\x16\x03\x01"}) {
    const Passed passed = Pass(Sender::kClient, text, 1);
    EXPECT_TRUE(passed.broken) << text;
    EXPECT_EQ(passed.bytes, "");
  }
  std::string last_byte(kHttp2Preface);
  last_byte.back() = 'x';
  EXPECT_TRUE(Pass(Sender::kClient, last_byte, 1).broken);
}

TEST(Http2FramesTest, AHeaderBlockThatIsTooLongIsBroken) {
  const std::string hello(kHttp2Preface);
  const size_t most = kMaxHeaderBlockBytes - 9;
  EXPECT_FALSE(
      Pass(Sender::kClient, hello + Http2Frame(kHeadersFrame, 1, std::string(most, 'h')), 16384)
          .broken);
  // It is said before it comes.
  EXPECT_TRUE(Pass(Sender::kClient,
                   hello + Http2Frame(kHeadersFrame, 1, std::string(most + 1, 'h')).substr(0, 9), 9)
                  .broken);
  // In frames of nothing, too.
  std::string endless = hello + Http2Frame(kHeadersFrame, 1, "h");
  const Passed before = Pass(Sender::kClient, endless, 16384);
  EXPECT_FALSE(before.broken);
  for (size_t i = 0; i < kMaxHeaderBlockBytes / 9; ++i) {
    endless += Http2Frame(kContinuationFrame, 1);
  }
  const Passed passed = Pass(Sender::kClient, endless, 16384);
  EXPECT_TRUE(passed.broken);
  EXPECT_EQ(passed.bytes, hello);
}

TEST(Http2FramesTest, AHeaderBlockIsInterruptedByNothing) {
  const std::string hello(kHttp2Preface);
  const std::string open = hello + Http2Frame(kHeadersFrame, 1, "h");
  for (const std::string& next :
       {Http2Frame(kPingFrame, 0, std::string(8, 'p')), Http2Frame(kDataFrame, 1, "d"),
        Http2Frame(kHeadersFrame, 1, "h", kEndHeadersFlag),
        Http2Frame(kContinuationFrame, 3, "h", kEndHeadersFlag)}) {
    EXPECT_TRUE(Pass(Sender::kClient, open + next, 1).broken);
  }
  EXPECT_TRUE(
      Pass(Sender::kClient, hello + Http2Frame(kContinuationFrame, 1, "h", kEndHeadersFlag), 1)
          .broken);
}

TEST(Http2FramesTest, OnlyStreamsOfClientsHaveHeaders) {
  for (const uint32_t stream : {0u, 2u}) {
    EXPECT_TRUE(
        Pass(Sender::kClient,
             std::string(kHttp2Preface) + Http2Frame(kHeadersFrame, stream, "h", kEndHeadersFlag),
             1)
            .broken)
        << stream;
  }
  // The first bit of a stream's number means nothing.
  const Passed passed = Pass(
      Sender::kClient,
      std::string(kHttp2Preface) + Http2Frame(kHeadersFrame, 0x80000007, "h", kEndHeadersFlag), 1);
  EXPECT_EQ(passed.begun, std::vector<uint32_t>{7});
}

}  // namespace
}  // namespace tandem
