#include "runtime/transport/frame_sink.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/crc32c.h"
#include "runtime/transport/frame_wire.h"

namespace tandem {
namespace {

constexpr int64_t kBlockBytes = 64;
constexpr JobId kJob = 5;

class Heard final : public KvTransport::Listener {
 public:
  void OnFrameSent(uint64_t send_id, bool ok) override {}
  void OnFrameReceived(const ReceivedFrame& frame, int64_t payload_bytes) override {
    frames.push_back(frame);
    bytes.push_back(payload_bytes);
  }
  void OnLinkProbed(const LinkReport& report) override {}
  void OnLinkClosed(const std::string& peer, const std::string& path) override {}

  std::vector<ReceivedFrame> frames;
  std::vector<int64_t> bytes;
};

class FrameSinkTest : public testing::Test {
 protected:
  // The header of `text` padded to a block, which goes to `ordinal`.
  FrameHeader Header(Reservation reservation, uint32_t ordinal, const std::string& text) {
    FrameHeader header{.reservation = reservation, .ordinal = ordinal, .length_bytes = kBlockBytes};
    std::string block = text;
    block.resize(kBlockBytes);
    header.crc32c = FrameChecksum(header, Crc32c(block.data(), block.size()));
    return header;
  }
  void Land(FrameSink::Landing* landing, const std::string& text) {
    std::memset(landing->data(), 0, kBlockBytes);
    std::memcpy(landing->data(), text.data(), text.size());
    landing->Complete(Crc32c(landing->data(), kBlockBytes));
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(8 * kBlockBytes);
  const KvPool pool_{.base = memory_.data(), .kv = {.num_blocks = 8, .block_bytes = kBlockBytes}};
  KvReceiver receiver_{kBlockBytes};
  Heard heard_;
  FrameSink sink_{pool_, &receiver_, &heard_};
};

TEST_F(FrameSinkTest, AHeaderOfAnotherLengthOrShardIsRefusedWithTheNumbers) {
  FrameHeader header = Header({.index = 0, .generation = 1}, 0, "zero");
  EXPECT_TRUE(sink_.Check(header).ok());
  header.length_bytes += 1;
  header.shard = {.index = 1, .count = 2};
  EXPECT_EQ(sink_.Check(header),
            absl::InvalidArgumentError(absl::StrFormat(
                "frame: %d bytes of shard 1 of 2, a block here has %d of shard 0 of 1",
                kBlockBytes + 1, kBlockBytes)));
  header.length_bytes -= 1;
  EXPECT_FALSE(sink_.Check(header).ok());
  header.shard = {};
  EXPECT_TRUE(sink_.Check(header).ok());
}

TEST(FrameWireTest, EveryFieldOfAHeaderTravels) {
  const FrameHeader sent{.reservation = {.index = 0x01020304, .generation = 0x05060708},
                         .ordinal = 0x090a0b0c,
                         .length_bytes = 0x0d0e0f10,
                         .shard = {.index = 0x1112, .count = 0x1314},
                         .crc32c = 0x15161718};
  std::byte bytes[kFrameHeaderBytes];
  PackFrameHeader(sent, bytes);
  const FrameHeader come = UnpackFrameHeader(bytes);
  EXPECT_EQ(come.reservation, sent.reservation);
  EXPECT_EQ(come.ordinal, sent.ordinal);
  EXPECT_EQ(come.length_bytes, sent.length_bytes);
  EXPECT_EQ(come.shard, sent.shard);
  EXPECT_EQ(come.crc32c, sent.crc32c);
}

TEST_F(FrameSinkTest, HeadersThatComeAheadGivePlacesToPayloadsInAnyOrder) {
  const Reservation reservation = receiver_.Open(kJob, 0, std::vector<int32_t>{6, 2});
  auto first = sink_.Begin(Header(reservation, 0, "zero"));
  auto second = sink_.Begin(Header(reservation, 1, "one"));
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(first->data(), pool_.block(6));
  EXPECT_EQ(second->data(), pool_.block(2));
  EXPECT_EQ(receiver_.num_in_flight(), 2);
  Land(&*second, "one");
  Land(&*first, "zero");
  ASSERT_EQ(heard_.frames.size(), 2u);
  EXPECT_EQ(heard_.frames[0].block, 2);
  EXPECT_EQ(heard_.frames[1].block, 6);
  for (const ReceivedFrame& frame : heard_.frames) {
    EXPECT_EQ(frame.outcome, FrameOutcome::kVerified);
  }
  EXPECT_EQ(heard_.bytes, (std::vector<int64_t>{kBlockBytes, kBlockBytes}));
  first.reset();  // Says nothing more.
  EXPECT_EQ(heard_.frames.size(), 2u);
}

TEST_F(FrameSinkTest, HeaderOfAClosedReservationHasNoPlace) {
  const Reservation reservation = receiver_.Open(kJob, 0, std::vector<int32_t>{3});
  receiver_.Close(reservation);
  EXPECT_FALSE(sink_.Begin(Header(reservation, 0, "late")).has_value());
  EXPECT_TRUE(heard_.frames.empty());
}

TEST_F(FrameSinkTest, PayloadThatLandsAfterItsReservationHasClosedIsOrphaned) {
  const Reservation reservation = receiver_.Open(kJob, 0, std::vector<int32_t>{3});
  auto landing = sink_.Begin(Header(reservation, 0, "late"));
  ASSERT_TRUE(landing.has_value());
  EXPECT_EQ(receiver_.Close(reservation), std::vector<int32_t>{3});  // To be quarantined.
  Land(&*landing, "late");
  ASSERT_EQ(heard_.frames.size(), 1u);
  EXPECT_EQ(heard_.frames[0].outcome, FrameOutcome::kOrphaned);
  EXPECT_EQ(heard_.frames[0].block, 3);
  EXPECT_EQ(receiver_.num_in_flight(), 0);
}

TEST_F(FrameSinkTest, PayloadThatNeverComesGivesItsPlaceBack) {
  const Reservation reservation = receiver_.Open(kJob, 0, std::vector<int32_t>{3});
  auto landing = sink_.Begin(Header(reservation, 0, "lost"));
  ASSERT_TRUE(landing.has_value());
  FrameSink::Landing moved = *std::move(landing);
  landing.reset();  // Holds nothing any more.
  EXPECT_EQ(receiver_.num_in_flight(), 1);
  { const FrameSink::Landing last = std::move(moved); }
  ASSERT_EQ(heard_.frames.size(), 1u);
  EXPECT_EQ(heard_.frames[0].outcome, FrameOutcome::kFailed);
  EXPECT_EQ(heard_.bytes[0], 0);
  EXPECT_EQ(receiver_.num_in_flight(), 0);
}

TEST_F(FrameSinkTest, DamagedPayloadIsFound) {
  const Reservation reservation = receiver_.Open(kJob, 0, std::vector<int32_t>{3});
  auto landing = sink_.Begin(Header(reservation, 0, "sent"));
  ASSERT_TRUE(landing.has_value());
  Land(&*landing, "bent");
  ASSERT_EQ(heard_.frames.size(), 1u);
  EXPECT_EQ(heard_.frames[0].outcome, FrameOutcome::kCorrupt);
}

}  // namespace
}  // namespace tandem
