#include "runtime/protocol/kv_receiver.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "runtime/base/random.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kBlockBytes = 64;
constexpr JobId kJob = 3;

FrameHeader HeaderFor(Reservation reservation, uint32_t ordinal, uint32_t payload_crc32c = 0) {
  FrameHeader header{.reservation = reservation, .ordinal = ordinal, .length_bytes = kBlockBytes};
  header.crc32c = FrameChecksum(header, payload_crc32c);
  return header;
}

class KvReceiverTest : public testing::Test {
 protected:
  Reservation Open(std::vector<int32_t> blocks) { return receiver_.Open(kJob, 3, blocks); }
  KvReceiver receiver_{kBlockBytes};
};

TEST_F(KvReceiverTest, PlacesAndVerifiesAFrame) {
  const Reservation r = Open({70, 71});
  const std::optional<KvReceiver::Place> place = receiver_.Begin(HeaderFor(r, 4, 9));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->block, 71);
  EXPECT_EQ(receiver_.num_in_flight(), 1);
  const ReceivedFrame frame = receiver_.Finish(*place, true, 9);
  EXPECT_EQ(frame.outcome, FrameOutcome::kVerified);
  EXPECT_EQ(frame.job, kJob);
  EXPECT_EQ(frame.reservation, r);
  EXPECT_EQ(frame.ordinal, 4);
  EXPECT_EQ(frame.block, 71);
  EXPECT_EQ(receiver_.num_in_flight(), 0);
}

// Each that lands makes the engine's queue longer, and it is asked for three times at most.
TEST_F(KvReceiverTest, ASenderOfDamagedFramesIsNotListenedToForEver) {
  const Reservation r = Open({70, 71});
  const auto damaged = [&] {
    const std::optional<KvReceiver::Place> place = receiver_.Begin(HeaderFor(r, 3, 9));
    if (!place) return false;
    EXPECT_EQ(receiver_.Finish(*place, true, 8).outcome, FrameOutcome::kCorrupt);
    return true;
  };
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(damaged()) << i;
  EXPECT_FALSE(damaged());
  EXPECT_FALSE(receiver_.Begin(HeaderFor(r, 4)));
  receiver_.Close(r);
  EXPECT_TRUE(receiver_.Begin(HeaderFor(Open({5}), 3))) << "the next one begins anew";
}

TEST_F(KvReceiverTest, DropsWhatNamesNoOpenReservation) {
  EXPECT_FALSE(receiver_.Begin(HeaderFor({.index = 0, .generation = 1}, 3)));
  const Reservation r = Open({70, 71});
  EXPECT_NE(r.generation, 0u);
  EXPECT_FALSE(receiver_.Begin(HeaderFor({.index = r.index + 1, .generation = r.generation}, 3)));
  EXPECT_FALSE(receiver_.Begin(HeaderFor({.index = r.index, .generation = r.generation + 1}, 3)));
  EXPECT_FALSE(receiver_.Begin(HeaderFor(r, 2)));
  EXPECT_FALSE(receiver_.Begin(HeaderFor(r, 5)));
  EXPECT_FALSE(receiver_.Begin(HeaderFor(r, 0xFFFFFFFF)));
  FrameHeader header = HeaderFor(r, 3);
  header.length_bytes = kBlockBytes + 1;
  EXPECT_FALSE(receiver_.Begin(header));
  header = HeaderFor(r, 3);
  header.shard = {.index = 0, .count = 2};
  EXPECT_FALSE(receiver_.Begin(header));
  EXPECT_THAT(receiver_.Close(r), IsEmpty());
  EXPECT_FALSE(receiver_.Begin(HeaderFor(r, 3)));
}

TEST_F(KvReceiverTest, AReusedIndexTakesNoLateFrame) {
  const Reservation first = Open({70});
  receiver_.Close(first);
  const Reservation second = Open({70});
  EXPECT_EQ(second.index, first.index);
  EXPECT_NE(second.generation, first.generation);
  EXPECT_FALSE(receiver_.Begin(HeaderFor(first, 3)));
  receiver_.Close(first);
  EXPECT_TRUE(receiver_.Begin(HeaderFor(second, 3))) << "it is over already";
}

TEST_F(KvReceiverTest, AnOrdinalLandsOnce) {
  const Reservation r = Open({70});
  const std::optional<KvReceiver::Place> place = receiver_.Begin(HeaderFor(r, 3));
  ASSERT_TRUE(place);
  EXPECT_FALSE(receiver_.Begin(HeaderFor(r, 3)));
  EXPECT_EQ(receiver_.Finish(*place, true, 0).outcome, FrameOutcome::kVerified);
  EXPECT_FALSE(receiver_.Begin(HeaderFor(r, 3)));
}

TEST_F(KvReceiverTest, ACorruptOrFailedFrameMayComeAgain) {
  const Reservation r = Open({70});
  std::optional<KvReceiver::Place> place = receiver_.Begin(HeaderFor(r, 3, 9));
  EXPECT_EQ(receiver_.Finish(*place, true, 8).outcome, FrameOutcome::kCorrupt);
  place = receiver_.Begin(HeaderFor(r, 3, 9));
  EXPECT_EQ(receiver_.Finish(*place, false, 9).outcome, FrameOutcome::kFailed);
  place = receiver_.Begin(HeaderFor(r, 3, 9));
  EXPECT_EQ(receiver_.Finish(*place, true, 9).outcome, FrameOutcome::kVerified);
}

TEST_F(KvReceiverTest, ClosingKeepsBackWhatIsInFlight) {
  const Reservation r = Open({70, 71, 72});
  const std::optional<KvReceiver::Place> landed = receiver_.Begin(HeaderFor(r, 3));
  receiver_.Finish(*landed, true, 0);
  const std::optional<KvReceiver::Place> place = receiver_.Begin(HeaderFor(r, 5));
  EXPECT_THAT(receiver_.Close(r), ElementsAre(72));
  EXPECT_THAT(receiver_.Close(r), IsEmpty());
  Open({80});  // The index's next owner is not mistaken for the old one.
  const ReceivedFrame frame = receiver_.Finish(*place, true, 0);
  EXPECT_EQ(frame.outcome, FrameOutcome::kOrphaned);
  EXPECT_EQ(frame.block, 72);
}

TEST_F(KvReceiverTest, TheSameAttemptMayNotInheritAnOrphan) {
  const Reservation first = Open({70});
  const std::optional<KvReceiver::Place> place = receiver_.Begin(HeaderFor(first, 3));
  EXPECT_THAT(receiver_.Close(first), ElementsAre(70));
  Open({71});
  EXPECT_EQ(receiver_.Finish(*place, true, 0).outcome, FrameOutcome::kOrphaned);
}

TEST(FrameChecksumTest, CoversEveryFieldOfTheHeader) {
  const FrameHeader header{
      .reservation = {.index = 1, .generation = 2}, .ordinal = 3, .length_bytes = 4};
  std::set<uint32_t> sums = {FrameChecksum(header, 0), FrameChecksum(header, 1)};
  FrameHeader other = header;
  other.reservation.index = 9;
  sums.insert(FrameChecksum(other, 0));
  other = header;
  other.reservation.generation = 9;
  sums.insert(FrameChecksum(other, 0));
  other = header;
  other.ordinal = 9;
  sums.insert(FrameChecksum(other, 0));
  other = header;
  other.length_bytes = 9;
  sums.insert(FrameChecksum(other, 0));
  other = header;
  other.shard.count = 9;
  sums.insert(FrameChecksum(other, 0));
  other = header;
  other.shard.index = 9;
  sums.insert(FrameChecksum(other, 0));
  EXPECT_EQ(sums.size(), 8u);
}

// An engine thread opens and closes, a transport thread lands frames, current and late. Every block
// handed back as in flight must come back as an orphan once, and nothing may be placed after Close.
TEST(KvReceiverThreadsTest, EveryBlockInFlightAtCloseComesBackOnce) {
  const uint64_t seed = 20240613;
  std::cout << "seed " << seed << "\n";
  constexpr int kRounds = 3000;
  constexpr int kBlocks = 4;
  KvReceiver receiver(kBlockBytes);
  std::mutex mu;
  std::vector<Reservation> opened;
  bool stop = false;
  std::vector<int32_t> orphans;
  std::thread transport([&] {
    Random random(seed);
    std::vector<KvReceiver::Place> places;
    for (bool last = false; !last;) {
      Reservation target;
      {
        std::lock_guard<std::mutex> lock(mu);
        last = stop;
        if (!opened.empty()) {
          const size_t back = std::min<size_t>(opened.size(), 1 + random.Below(2));
          target = opened[opened.size() - back];
        }
      }
      const uint32_t ordinal = static_cast<uint32_t>(random.Below(kBlocks));
      if (const auto place = receiver.Begin(HeaderFor(target, ordinal))) places.push_back(*place);
      while (!places.empty() && (last || random.Chance(0.6))) {
        const ReceivedFrame frame = receiver.Finish(places.back(), true, 0);
        places.pop_back();
        if (frame.outcome == FrameOutcome::kOrphaned) orphans.push_back(frame.block);
      }
    }
  });
  std::vector<int32_t> kept_back;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int32_t> blocks(kBlocks);
    for (int i = 0; i < kBlocks; ++i) blocks[static_cast<size_t>(i)] = round * kBlocks + i;
    const Reservation reservation = receiver.Open(static_cast<JobId>(round), 0, blocks);
    {
      std::lock_guard<std::mutex> lock(mu);
      opened.push_back(reservation);
    }
    std::this_thread::yield();
    for (const int32_t block : receiver.Close(reservation)) kept_back.push_back(block);
  }
  {
    std::lock_guard<std::mutex> lock(mu);
    stop = true;
  }
  transport.join();
  std::sort(orphans.begin(), orphans.end());
  std::sort(kept_back.begin(), kept_back.end());
  EXPECT_EQ(orphans, kept_back);
  EXPECT_EQ(receiver.num_in_flight(), 0);
}

}  // namespace
}  // namespace tandem
