#include "runtime/protocol/decode_transfer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "gmock/gmock.h"

namespace tandem {
namespace {

using State = DecodeTransfer::State;

constexpr JobId kJob = 3;
const Reservation kReservation{.index = 4, .generation = 5};

// Promised: blocks 1 and 2 of three.
class DecodeTransferTest : public testing::Test {
 protected:
  void StartAndGrant(int64_t now_us = 0) {
    EXPECT_TRUE(transfer_.OnStart());
    transfer_.OnGranted(kReservation, now_us);
  }
  std::optional<Resend> Frame(int32_t ordinal, FrameOutcome outcome, int64_t now_us = 0) {
    return transfer_.OnFrame(
        {.reservation = kReservation, .job = kJob, .ordinal = ordinal, .outcome = outcome}, now_us);
  }
  void Arrive(int what) {
    if (what == 0) transfer_.OnFirstToken(0);
    if (what == 1) transfer_.OnDone({.job = kJob, .num_frames = 2}, 0);
    if (what == 2) Frame(1, FrameOutcome::kVerified);
    if (what == 3) Frame(2, FrameOutcome::kVerified);
  }
  const DecodeTransfer::Options options_{
      .job = kJob, .first_block = 1, .num_blocks = 3, .timeout_us = 100};
  DecodeTransfer transfer_{options_};
};

TEST_F(DecodeTransferTest, CompletesWhenEverythingArrivedInAnyOrder) {
  std::array<int, 4> order = {0, 1, 2, 3};
  do {
    transfer_ = DecodeTransfer(options_);
    StartAndGrant();
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(transfer_.state(), State::kGranted);
      Arrive(order[i]);
      Arrive(order[i]);  // Once more changes nothing.
    }
    EXPECT_EQ(transfer_.state(), State::kComplete);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(DecodeTransferTest, AFirstTokenIsASignOfLife) {
  StartAndGrant(/*now_us=*/1000);
  EXPECT_EQ(transfer_.expires_at_us(), 1100);
  EXPECT_TRUE(transfer_.OnFirstToken(1050));
  EXPECT_EQ(transfer_.expires_at_us(), 1150);
  EXPECT_FALSE(transfer_.OnFirstToken(1060));
  EXPECT_EQ(transfer_.expires_at_us(), 1160) << "even one that is not new";
}

TEST_F(DecodeTransferTest, SoIsADone) {
  StartAndGrant(/*now_us=*/1000);
  transfer_.OnDone({.job = kJob, .num_frames = 2}, 1050);
  EXPECT_EQ(transfer_.expires_at_us(), 1150);
}

TEST_F(DecodeTransferTest, AsksForItsGrantOnce) {
  EXPECT_TRUE(transfer_.OnStart());
  EXPECT_FALSE(transfer_.OnStart());
  const Grant grant = transfer_.OnGranted(kReservation, 0);
  EXPECT_EQ(grant.job, kJob);
  EXPECT_EQ(grant.reservation, kReservation);
  EXPECT_FALSE(transfer_.OnStart());
}

TEST_F(DecodeTransferTest, AnEmptyPromiseNeedsNoGrant) {
  DecodeTransfer empty({.job = kJob, .first_block = 3, .num_blocks = 3});
  EXPECT_FALSE(empty.OnStart());
  EXPECT_TRUE(empty.OnFirstToken(0));
  empty.OnDone({.job = kJob, .num_frames = 0}, 0);
  EXPECT_EQ(empty.state(), State::kComplete);
}

TEST_F(DecodeTransferTest, TheFirstTokenIsNewOnce) {
  StartAndGrant();
  EXPECT_TRUE(transfer_.OnFirstToken(0));
  EXPECT_FALSE(transfer_.OnFirstToken(0));
}

TEST_F(DecodeTransferTest, ACorruptCopyOfWhatIsHereIsNotAskedForAgain) {
  StartAndGrant();
  Frame(1, FrameOutcome::kVerified);
  for (int i = 0; i <= kMaxResends; ++i) EXPECT_FALSE(Frame(1, FrameOutcome::kCorrupt));
  EXPECT_EQ(transfer_.state(), State::kGranted);
}

TEST_F(DecodeTransferTest, ACorruptBlockIsAskedForTwiceThenFails) {
  StartAndGrant();
  for (int i = 0; i < kMaxResends; ++i) {
    const std::optional<Resend> resend = Frame(2, FrameOutcome::kCorrupt);
    ASSERT_TRUE(resend);
    EXPECT_EQ(resend->ordinal, 2);
  }
  EXPECT_TRUE(Frame(1, FrameOutcome::kCorrupt));  // Counted block by block.
  EXPECT_FALSE(Frame(2, FrameOutcome::kCorrupt));
  EXPECT_EQ(transfer_.state(), State::kFailed);
  EXPECT_EQ(transfer_.failure().code(), absl::StatusCode::kDataLoss);
}

TEST_F(DecodeTransferTest, FailsAfterSilenceOnceGranted) {
  EXPECT_TRUE(transfer_.OnStart());
  transfer_.Expire(1'000'000);
  EXPECT_EQ(transfer_.expires_at_us(), std::numeric_limits<int64_t>::max());
  transfer_.OnGranted(kReservation, 1000);
  transfer_.OnAlive(1050);
  Frame(1, FrameOutcome::kVerified, 1090);
  EXPECT_EQ(transfer_.expires_at_us(), 1190);
  transfer_.Expire(1189);
  EXPECT_EQ(transfer_.state(), State::kGranted);
  transfer_.Expire(1190);
  EXPECT_EQ(transfer_.state(), State::kFailed);
  EXPECT_EQ(transfer_.failure().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(transfer_.failure().message()), testing::HasSubstr("1 of 2 blocks"));
}

TEST_F(DecodeTransferTest, OnceAllWasSentARenewalCountsOnlyWhileTheLinkMoves) {
  StartAndGrant(/*now_us=*/1000);
  const auto counts = [&](int64_t block_us, int64_t now_us) {
    transfer_.OnRenew(block_us, /*stalled_us=*/50, now_us);
    return transfer_.expires_at_us() == now_us + 100;
  };
  EXPECT_TRUE(counts(/*block_us=*/0, 1090));
  const Done done{.job = kJob, .num_frames = 2};
  transfer_.OnDone(done, 1100);
  EXPECT_TRUE(counts(/*block_us=*/0, 1149));
  transfer_.OnDone(done, 1149);  // Once more changes nothing.
  EXPECT_FALSE(counts(/*block_us=*/0, 1150));
  EXPECT_TRUE(counts(/*block_us=*/1140, 1160)) << "another's block came over the link";
  EXPECT_FALSE(counts(/*block_us=*/1140, 1190));
}

TEST_F(DecodeTransferTest, ALostTransportOrPeerFailsIt) {
  StartAndGrant();
  Frame(1, FrameOutcome::kFailed);
  EXPECT_EQ(transfer_.failure().code(), absl::StatusCode::kUnavailable);
  transfer_ = DecodeTransfer(options_);
  transfer_.OnPeerLost(absl::UnavailableError("gone"));
  EXPECT_EQ(transfer_.state(), State::kFailed);
  transfer_.OnRefused(absl::ResourceExhaustedError("late"));
  EXPECT_EQ(transfer_.failure().message(), "gone");
}

TEST_F(DecodeTransferTest, RefusesAPeerThatPromisedOtherwise) {
  StartAndGrant();
  transfer_.OnDone({.job = kJob, .num_frames = 1}, 0);
  EXPECT_EQ(transfer_.failure().code(), absl::StatusCode::kInternal);
}

TEST_F(DecodeTransferTest, NothingMattersAfterTheEnd) {
  StartAndGrant();
  transfer_.OnPeerLost(absl::UnavailableError("gone"));
  EXPECT_FALSE(transfer_.OnFirstToken(0)) << "it has not come before, and is not new";
  for (const int what : {0, 1, 2, 3}) Arrive(what);
  EXPECT_FALSE(transfer_.OnFirstToken(0));
  EXPECT_EQ(transfer_.state(), State::kFailed);
  EXPECT_EQ(transfer_.num_verified(), 0);
}

}  // namespace
}  // namespace tandem
