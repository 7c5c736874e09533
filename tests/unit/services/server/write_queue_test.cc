#include "services/server/write_queue.h"

#include <gtest/gtest.h>

#include "tandem/v1/kv.pb.h"

namespace tandem {
namespace {

constexpr int64_t kLimit = 13'000;

struct Stream {
  void StartWrite(const v1::FramesRequest*, grpc::WriteOptions) { ++num_writes; }
  int num_writes = 0;
};

v1::FramesRequest Message(size_t bytes) {
  v1::FramesRequest message;
  message.set_token(std::string(bytes, 't'));
  return message;
}

TEST(WriteQueueTest, WhatIsNotWrittenIsChargedAndEndsTheStreamWhereThereIsNoRoom) {
  MemoryBudget budget(kLimit);
  Stream stream;
  WriteQueue<Stream, v1::FramesRequest> writes(&stream, &budget, "peer", /*cut=*/nullptr);
  EXPECT_TRUE(writes.Push(Message(1000)).ok());
  EXPECT_GE(budget.held_bytes(), 2000)
      << "gRPC has it, and a peer that does not read leaves it there";
  EXPECT_TRUE(writes.Push(Message(2000)).ok());
  EXPECT_GE(budget.held_bytes(), 6000);
  EXPECT_TRUE(writes.Push(Message(2000)).ok());
  EXPECT_FALSE(writes.Push(Message(2000)).ok());
  EXPECT_LE(budget.held_bytes(), kLimit);
  writes.OnWriteDone(true);
  EXPECT_EQ(stream.num_writes, 2);
  EXPECT_TRUE(writes.Push(Message(2000)).ok());
  EXPECT_FALSE(writes.Push(Message(2000)).ok());
  writes.Close();
  EXPECT_EQ(budget.held_bytes(), 0);
}

TEST(WriteQueueTest, WhatIsFreeIsNotChargedAndNeedsNoRoom) {
  MemoryBudget budget(kLimit);
  MemoryBudget::Holding others(&budget, "others");
  ASSERT_TRUE(others.Set(kLimit).ok());
  Stream stream;
  WriteQueue<Stream, v1::FramesRequest> writes(&stream, &budget, "peer", /*cut=*/nullptr,
                                               /*held=*/false, /*free_bytes=*/5000);
  EXPECT_TRUE(writes.Push(Message(2000)).ok());
  EXPECT_FALSE(writes.Push(Message(2000)).ok());
  ASSERT_TRUE(others.Set(0).ok());
  EXPECT_TRUE(writes.Push(Message(2000)).ok());
  EXPECT_GE(budget.held_bytes(), 8000 - 5000);
  EXPECT_LT(budget.held_bytes(), 8000);
  writes.OnWriteDone(true);
  EXPECT_EQ(budget.held_bytes(), 0);
}

TEST(WriteQueueTest, MoreMessagesThanMayWaitAreRefused) {
  MemoryBudget budget(int64_t{64} << 20);
  Stream stream;
  WriteQueue<Stream, v1::FramesRequest> writes(&stream, &budget, "peer", /*cut=*/nullptr);
  ASSERT_TRUE(writes.Push(Message(1)).ok());
  for (size_t i = 0; i < kMaxUnsentMessages; ++i) ASSERT_TRUE(writes.Push(Message(1)).ok()) << i;
  EXPECT_FALSE(writes.Push(Message(1)).ok());
}

TEST(WriteQueueTest, WhatIsNotWrittenGivesWayToWhoHoldsLess) {
  MemoryBudget budget(kLimit);
  Stream stream;
  int num_cuts = 0;
  WriteQueue<Stream, v1::FramesRequest> writes(&stream, &budget, "peer", [&] { ++num_cuts; });
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(writes.Push(Message(3000)).ok());
  MemoryBudget::Holding other(&budget, "other");
  EXPECT_TRUE(other.Set(kLimit - 12'500).ok());
  EXPECT_EQ(num_cuts, 0);
  EXPECT_TRUE(other.Set(5000).ok());
  EXPECT_EQ(num_cuts, 1);
  EXPECT_FALSE(writes.Push(Message(1)).ok());
  writes.Close();
  EXPECT_EQ(budget.held_bytes(), 5000);
}

class WriteTest : public testing::Test {
 protected:
  MemoryBudget budget_{kLimit};
  Stream stream_;
  WriteQueue<Stream, v1::FramesRequest> writes_{&stream_, &budget_, "peer", /*cut=*/nullptr};
};

TEST_F(WriteTest, OneIsInFlightAndCountsUntilItIsDone) {
  EXPECT_EQ(writes_.size(), 0u);
  EXPECT_TRUE(writes_.Push(Message(1)).ok());
  EXPECT_TRUE(writes_.Push(Message(1)).ok());
  EXPECT_EQ(stream_.num_writes, 1);
  EXPECT_EQ(writes_.size(), 2u);
  writes_.OnWriteDone(true);
  EXPECT_EQ(stream_.num_writes, 2);
  EXPECT_EQ(writes_.size(), 1u);
  writes_.OnWriteDone(true);
  EXPECT_EQ(writes_.size(), 0u);
}

TEST_F(WriteTest, AfterAFailedWriteNoneFollows) {
  EXPECT_TRUE(writes_.Push(Message(1)).ok());
  EXPECT_TRUE(writes_.Push(Message(1)).ok());
  writes_.OnWriteDone(false);
  EXPECT_EQ(stream_.num_writes, 1);
  EXPECT_EQ(writes_.size(), 0u);
  EXPECT_EQ(budget_.held_bytes(), 0);
}

TEST_F(WriteTest, ClosingTellsWhetherAWriteIsInFlightAndDropsWhatComes) {
  EXPECT_TRUE(writes_.Push(Message(1)).ok());
  EXPECT_TRUE(writes_.Close());
  writes_.OnWriteDone(true);
  EXPECT_FALSE(writes_.Close());
  EXPECT_TRUE(writes_.Push(Message(1)).ok());
  EXPECT_EQ(budget_.held_bytes(), 0);
  EXPECT_EQ(stream_.num_writes, 1);
}

TEST_F(WriteTest, AQueueThatIsMadeHeldWritesOnceItIsOpened) {
  WriteQueue<Stream, v1::FramesRequest> held(&stream_, &budget_, "peer", /*cut=*/nullptr,
                                             /*held=*/true);
  EXPECT_TRUE(held.Push(Message(1)).ok());
  EXPECT_EQ(stream_.num_writes, 0);
  held.Open();
  EXPECT_EQ(stream_.num_writes, 1);
}

}  // namespace
}  // namespace tandem
