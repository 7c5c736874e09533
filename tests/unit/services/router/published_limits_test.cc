// docs/limits.md says what the code says.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/http/http_server.h"
#include "services/router/api_limits.h"
#include "services/router/router_core.h"
#include "services/router/running_call.h"
#include "services/server/channel.h"
#include "services/server/http2_frames.h"
#include "services/server/http2_gate.h"
#include "services/server/limits.h"
#include "services/server/open_calls.h"
#include "services/server/wire_message.h"

namespace tandem {
namespace {

using testing::EndsWith;
using testing::StartsWith;

std::string Bytes(int64_t bytes) {
  if (bytes % (1 << 20) == 0) return absl::StrCat(bytes >> 20, " MiB");
  if (bytes % (1 << 10) == 0) return absl::StrCat(bytes >> 10, " KiB");
  return absl::StrCat(bytes, " B");
}

std::string Count(int64_t count) {
  if (count % (1 << 20) == 0) return absl::StrCat(count >> 20, " Mi");
  std::string text = absl::StrCat(count);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string Seconds(std::chrono::milliseconds time) {
  return absl::StrCat(time.count() / 1000, " s");
}

const std::string kSilence = Seconds(kKeepaliveTime) + " + " + Seconds(kKeepaliveTimeout) + "; " +
                             Seconds(kWriteTimeout) + " where it has bytes to acknowledge";

class PublishedLimitsTest : public testing::Test {
 protected:
  PublishedLimitsTest() {
    std::ifstream file(std::string(TANDEM_TEST_DATA) + "/../../docs/limits.md");
    std::string section;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("## ")) section = line.substr(3);
      if (!line.starts_with("| ")) continue;
      const size_t second = line.find(" | ");
      const size_t third = line.find(" |", second + 3);
      if (third == line.npos) continue;
      rows_[{section, line.substr(2, second - 2)}] = line.substr(second + 3, third - second - 3);
    }
  }

  // What the page tells in its second column.
  std::string Row(const std::string& section, const std::string& limit) const {
    const auto found = rows_.find({section, limit});
    return found == rows_.end() ? "no such row" : found->second;
  }

  std::map<std::pair<std::string, std::string>, std::string> rows_;
};

TEST_F(PublishedLimitsTest, OfMemory) {
  EXPECT_THAT(Row("Memory", "an HTTP connection"), StartsWith(Bytes(kHttpConnectionBytes) + ","));
  EXPECT_THAT(Row("Memory", "a gRPC call"), StartsWith(Bytes(kCallBytes) + " "));
  EXPECT_THAT(Row("Memory", "a connection to a gRPC server, of clients and of peers alike"),
              StartsWith(Bytes(kGateConnectionBytes) + ","));
}

TEST_F(PublishedLimitsTest, OfHttpClients) {
  const auto row = [&](const char* limit) { return Row("HTTP clients of the router", limit); };
  EXPECT_EQ(row("header, and one line of chunk framing or of trailers"), Bytes(kMaxHeaderBytes));
  EXPECT_EQ(row("header fields, trailers included"), Count(kMaxHeaderFields));
  EXPECT_EQ(row("chunk extensions of a request"), Bytes(kMaxChunkExtensionBytes));
  EXPECT_EQ(row("target"), Bytes(kMaxTargetBytes));
  EXPECT_EQ(row("body"), Bytes(kMaxBodyBytes));
  EXPECT_EQ(row("JSON depth"), Count(kMaxJsonDepth));
  EXPECT_EQ(row("requests sent ahead of an answer"), Bytes(kMaxReadAheadBytes));
  EXPECT_EQ(row("time for a header, and before it for a TLS handshake"),
            Seconds(HttpTimes().header));
  EXPECT_EQ(row("time for a body"), Seconds(HttpTimes().body));
  EXPECT_EQ(row("reading on after a refusal or a last answer"), Seconds(HttpTimes().discard));
  EXPECT_EQ(row("idle time of a kept connection"), Seconds(HttpTimes().idle));
  EXPECT_EQ(row("the same once the server drains"), Seconds(HttpTimes().last_request));
  EXPECT_EQ(row("time for a write to make progress"), Seconds(HttpTimes().write));
  EXPECT_EQ(row("answer bytes not read when more come"), Bytes(kMaxUnsentBytes));
  EXPECT_EQ(row("silence of the client's machine"), kSilence);
  EXPECT_EQ(row("connections"), Count(kMaxConnections));
  EXPECT_EQ(row("connections to `--admin`"), Count(kMaxAdminConnections));
}

TEST_F(PublishedLimitsTest, OfGrpcClients) {
  const auto row = [&](const char* limit) { return Row("gRPC clients of the router", limit); };
  EXPECT_EQ(row("metadata"), Bytes(kMaxHeaderBytes));
  EXPECT_EQ(row("message"), Bytes(kMaxGrpcMessageBytes));
  EXPECT_EQ(row("what a message takes once it is parsed"),
            absl::StrCat(kMaxExpansion, " times its bytes, and ", Bytes(kFreeParsedBytes)));
  EXPECT_EQ(row("calls of one connection at a time"), Count(kMaxGrpcStreams));
  EXPECT_THAT(row("calls that wait for their message"),
              StartsWith(Count(kMaxWaitingBytes / kCallBytes) + " (" + Bytes(kMaxWaitingBytes)));
  EXPECT_EQ(row("time to receive a message while others wait for their turn"),
            Seconds(OpenCalls::Options().turn));
  EXPECT_EQ(row("time from the headers to the whole message"), Seconds(kBodyTimeout));
  EXPECT_EQ(row("time for a write to make progress"), Seconds(kWriteTimeout));
  EXPECT_EQ(row("time for the preface of HTTP/2, and before it for a TLS handshake"),
            Seconds(kPrefaceTimeout));
  EXPECT_EQ(row("header block, with what begins its frames"), Bytes(kMaxHeaderBlockBytes));
  EXPECT_EQ(row("time for a header block"), Seconds(kHeaderBlockTimeout));
  EXPECT_EQ(row("time to read what a server sent before it ended the connection"),
            Seconds(kGateReadTimeout));
  EXPECT_EQ(row("calls of a server that nobody has looked at yet"),
            absl::StrCat(Count(kMaxUnservedCalls), ", half of them of one client"));
  EXPECT_EQ(row("PINGs and SETTINGS of a connection that are not answered yet"),
            Count(kMaxUnanswered));
  EXPECT_EQ(row("events not read"), Bytes(RunningCall::kMaxPendingBytes));
  EXPECT_EQ(row("bytes of a message before it is read"), Bytes(kCallWindowBytes));
}

TEST_F(PublishedLimitsTest, OfRequests) {
  const auto row = [&](const char* limit) { return Row("Requests", limit); };
  EXPECT_EQ(row("prompts of a call"), Count(kMaxPrompts));
  EXPECT_EQ(row("`n`"), Count(kMaxN));
  EXPECT_THAT(row("`max_tokens`"), StartsWith(Count(kMaxRequestTokens) + ","));
  EXPECT_EQ(row("sequences of a call (prompts × n)"), Count(kMaxSequencesPerCall));
  EXPECT_EQ(row("tokens and log-probabilities of an answer that is made whole"),
            Count(kMaxAnswerValues));
  EXPECT_EQ(row("of these, of prompts, in a stream too"),
            absl::StrCat("what fits a quarter of `--memory-limit` with ", kPromptLogprobBytes,
                         " bytes each"));
  EXPECT_EQ(row("temperature"), Count(static_cast<int64_t>(kMaxTemperature)));
  EXPECT_EQ(row("stop strings, bytes of each"),
            Count(kMaxStopStrings) + ", " + Count(kMaxStopStringBytes));
  EXPECT_EQ(row("stop ids"), Count(kMaxStopIds));
  EXPECT_EQ(row("`logit_bias`"), absl::StrCat(Count(kMaxLogitBias), " tokens, each from ",
                                              -kMaxAbsLogitBias, " to ", kMaxAbsLogitBias));
  EXPECT_EQ(row("`cache_salt`"), Count(kMaxCacheSaltBytes) + " bytes");
  EXPECT_EQ(row("log-probabilities of a token"), Count(kMaxLogprobs));
  EXPECT_EQ(row("messages of a chat"), Count(kMaxMessages));
  EXPECT_EQ(row("requests accepted and not finished"), Count(RequestOwnerOptions().max_requests));
  EXPECT_EQ(row("calls that the router's thread has not taken yet, of any number of prompts"),
            Count(RouterCoreOptions().max_queued_commands));
  EXPECT_THAT(row("deadline"), StartsWith(absl::StrCat(kMaxDeadlineUs / 3'600'000'000, " h;")));
  EXPECT_THAT(row("request id"), StartsWith(Count(kMaxRequestIdBytes) + " bytes"));
}

TEST_F(PublishedLimitsTest, OfRoutersAndWorkersOfAWorker) {
  const auto row = [&](const char* limit) { return Row("Routers and workers of a worker", limit); };
  EXPECT_EQ(row("message"), Bytes(kMaxMessageBytes));
  EXPECT_THAT(
      row("calls of one connection at a time; header blocks and calls that nobody has looked "
          "at yet"),
      StartsWith(Count(kMaxPeerStreams) + ";"));
  EXPECT_THAT(row("the message of Watch, Control, Frames, Challenge"),
              StartsWith(Seconds(OpenCalls::Options().message_timeout)));
  EXPECT_EQ(row("tokens of a Submit"), Count(kMaxRequestTokens));
  EXPECT_EQ(
      row("name; text; transport address"),
      Bytes(kMaxNameBytes) + "; " + Bytes(kMaxTextBytes) + "; " + Bytes(kMaxTransportAddressBytes));
  EXPECT_EQ(row("stop ids; log-probabilities of a token; a duration"),
            absl::StrCat(Count(kMaxStopTokenIds), "; ", kMaxTopLogprobs, "; ",
                         kMaxDurationUs / 86'400'000'000, " days"));
  EXPECT_EQ(row("jobs of one renewal; events of one batch"),
            Count(kMaxRenewedJobs) + "; " + Count(kMaxEventsPerBatch));
}

TEST_F(PublishedLimitsTest, OfWorkersOfARouter) {
  const auto row = [&](const std::string& limit) { return Row("Workers of a router", limit); };
  EXPECT_THAT(row("message"), EndsWith(", at most " + Bytes(MaxMessageBytes(int64_t{1} << 40))));
  EXPECT_EQ(row("what a message takes once it is parsed"),
            absl::StrCat(kMaxWorkerExpansion, " times its bytes, and ", Bytes(kFreeParsedBytes)));
  EXPECT_EQ(row("hashes of one message of a Watch; a worker splits what is more than " +
                Count(kHashesPerEvent)),
            Count(kMaxHashesPerEvent));
  EXPECT_EQ(row("metrics"), Bytes(kMaxMetricsBytes));
}

}  // namespace
}  // namespace tandem
