#include "runtime/protocol/prefill_transfer.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "runtime/protocol/reservation_table.h"

namespace tandem {
namespace {

constexpr JobId kJob = 3;
const Reservation kReservation{.index = 4, .generation = 5};

// Promised: blocks 1 and 2 of three.
class PrefillTransferTest : public testing::Test {
 protected:
  void StartAndGrant() {
    transfer_.Start();
    transfer_.OnGrant({.job = kJob, .reservation = kReservation});
  }
  // The next frame's ordinal, -1 if none may go.
  int64_t Take() {
    const std::optional<FrameHeader> header = transfer_.TakeFrame();
    return header ? static_cast<int64_t>(header->ordinal) : -1;
  }
  PrefillTransfer transfer_{
      {.job = kJob, .first_block = 1, .num_blocks = 3, .block_bytes = 64, .lease_us = 100},
      /*now_us=*/1000};
};

TEST_F(PrefillTransferTest, HoldsReadyBlocksUntilTheGrant) {
  transfer_.Start();
  transfer_.OnBlockReady(1, 77);
  EXPECT_EQ(Take(), -1);
  transfer_.OnGrant({.job = kJob, .reservation = kReservation});
  transfer_.Start();  // Once more changes nothing.
  const std::optional<FrameHeader> header = transfer_.TakeFrame();
  ASSERT_TRUE(header);
  EXPECT_EQ(header->reservation, kReservation);
  EXPECT_EQ(header->ordinal, 1u);
  EXPECT_EQ(header->length_bytes, 64u);
  EXPECT_EQ(header->crc32c, FrameChecksum(*header, 77));
  EXPECT_EQ(Take(), -1);
}

TEST_F(PrefillTransferTest, SendsOnlyThePromisedRangeLowestFirst) {
  StartAndGrant();
  for (const int ordinal : {2, 1, 0, 3}) transfer_.OnBlockReady(ordinal, 0);
  EXPECT_EQ(Take(), 1);
  EXPECT_EQ(Take(), 2);
  EXPECT_EQ(Take(), -1);
}

TEST_F(PrefillTransferTest, DoneComesOnceAfterFirstTokenAndAllHandedOver) {
  StartAndGrant();
  transfer_.OnBlockReady(1, 0);
  transfer_.OnBlockReady(2, 0);
  EXPECT_EQ(Take(), 1);
  transfer_.OnFirstTokenSent();
  EXPECT_FALSE(transfer_.TakeDone());
  EXPECT_EQ(Take(), 2);
  const std::optional<Done> done = transfer_.TakeDone();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->num_frames, 2);
  EXPECT_FALSE(transfer_.TakeDone());
}

TEST_F(PrefillTransferTest, DoneDoesNotComeOnceItHasEnded) {
  StartAndGrant();
  for (const int ordinal : {1, 2}) transfer_.OnBlockReady(ordinal, 0);
  EXPECT_EQ(Take(), 1);
  EXPECT_EQ(Take(), 2);
  transfer_.OnFirstTokenSent();
  transfer_.End(absl::CancelledError("cancelled"));
  EXPECT_FALSE(transfer_.TakeDone());
}

TEST_F(PrefillTransferTest, ABlockIsReadyOnce) {
  StartAndGrant();
  transfer_.OnBlockReady(1, 77);
  transfer_.OnBlockReady(1, 78);
  const std::optional<FrameHeader> header = transfer_.TakeFrame();
  ASSERT_TRUE(header);
  EXPECT_EQ(header->crc32c, FrameChecksum(*header, 77));
  transfer_.OnBlockReady(1, 78);
  EXPECT_EQ(Take(), -1) << "it is under way";
}

TEST_F(PrefillTransferTest, ABlockThatIsSentAgainIsOneFrame) {
  StartAndGrant();
  transfer_.OnBlockReady(1, 0);
  EXPECT_EQ(Take(), 1);
  transfer_.OnFrameSent(1, true);
  transfer_.OnResend({.job = kJob, .ordinal = 1});
  EXPECT_EQ(Take(), 1);
  transfer_.OnFirstTokenSent();
  EXPECT_FALSE(transfer_.TakeDone());
  transfer_.OnBlockReady(2, 0);
  EXPECT_EQ(Take(), 2);
  const std::optional<Done> done = transfer_.TakeDone();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->num_frames, 2);
}

TEST_F(PrefillTransferTest, AGrantThatNothingAskedForIsNone) {
  transfer_.OnGrant({.job = kJob, .reservation = kReservation});
  transfer_.Start();
  transfer_.OnBlockReady(1, 0);
  EXPECT_EQ(Take(), -1);
}

TEST_F(PrefillTransferTest, NoDoneBeforeTheFirstToken) {
  StartAndGrant();
  for (const int ordinal : {1, 2}) transfer_.OnBlockReady(ordinal, 0);
  while (Take() >= 0) {
  }
  EXPECT_FALSE(transfer_.TakeDone());
}

TEST_F(PrefillTransferTest, SendsAgainOnlyWhatHasGone) {
  StartAndGrant();
  transfer_.OnResend({.job = kJob, .ordinal = 1});
  EXPECT_EQ(Take(), -1);  // Not computed yet.
  transfer_.OnBlockReady(1, 0);
  EXPECT_EQ(Take(), 1);
  transfer_.OnFrameSent(1, true);
  transfer_.OnResend({.job = kJob, .ordinal = 1});
  EXPECT_EQ(Take(), 1);
  transfer_.OnResend({.job = kJob, .ordinal = 9});
  EXPECT_EQ(Take(), -1);
}

TEST_F(PrefillTransferTest, RemembersAResendThatOvertookTheCompletion) {
  StartAndGrant();
  transfer_.OnBlockReady(1, 0);
  EXPECT_EQ(Take(), 1);
  transfer_.OnResend({.job = kJob, .ordinal = 1});
  EXPECT_EQ(Take(), -1);
  transfer_.OnFrameSent(1, true);
  EXPECT_EQ(Take(), 1);
  transfer_.OnFrameSent(1, true);
  EXPECT_EQ(Take(), -1);
}

TEST_F(PrefillTransferTest, RenewalsCountFromTheirArrival) {
  transfer_.Expire(1099);
  EXPECT_FALSE(transfer_.ended());
  transfer_.OnRenew(1050);
  transfer_.OnRenew(1020);  // Overtaken by a later one.
  EXPECT_EQ(transfer_.lease_until_us(), 1150);
  transfer_.Expire(1149);
  EXPECT_FALSE(transfer_.ended());
  transfer_.Expire(1150);
  EXPECT_TRUE(transfer_.ended());
  EXPECT_EQ(transfer_.outcome().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PrefillTransferTest, AFailedSendEndsIt) {
  StartAndGrant();
  transfer_.OnBlockReady(1, 0);
  EXPECT_EQ(Take(), 1);
  transfer_.OnFrameSent(1, false);
  EXPECT_EQ(transfer_.outcome().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PrefillTransferTest, NothingGoesOutAfterTheEndAndTheFirstReasonStays) {
  StartAndGrant();
  for (const int ordinal : {1, 2}) transfer_.OnBlockReady(ordinal, 0);
  EXPECT_EQ(Take(), 1);
  transfer_.End(absl::OkStatus());
  transfer_.End(absl::CancelledError());
  transfer_.OnFrameSent(1, true);
  transfer_.OnResend({.job = kJob, .ordinal = 1});
  transfer_.OnGrant({.job = kJob, .reservation = kReservation});
  transfer_.OnFirstTokenSent();
  EXPECT_EQ(Take(), -1);
  EXPECT_FALSE(transfer_.TakeDone());
  EXPECT_TRUE(transfer_.outcome().ok());
}

TEST_F(PrefillTransferTest, AnEmptyPromiseIsDoneWithItsFirstToken) {
  PrefillTransfer empty({.job = kJob, .first_block = 3, .num_blocks = 3}, 0);
  empty.Start();
  EXPECT_FALSE(empty.TakeDone());
  empty.OnFirstTokenSent();
  EXPECT_TRUE(empty.TakeDone());
}

TEST_F(PrefillTransferTest, EqualStatesHaveEqualBytes) {
  PrefillTransfer other = transfer_;
  const auto bytes = [](const PrefillTransfer& t) {
    std::string state;
    t.AppendState(&state);
    return state;
  };
  EXPECT_EQ(bytes(other), bytes(transfer_));
  other.OnBlockReady(1, 8);
  EXPECT_NE(bytes(other), bytes(transfer_));
}

}  // namespace
}  // namespace tandem
