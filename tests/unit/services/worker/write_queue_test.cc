#include "services/worker/write_queue.h"

#include <gtest/gtest.h>

#include "tandem/v1/kv.pb.h"

namespace tandem {
namespace {

constexpr int64_t kLimit = 10'000;

struct Stream {
  void StartWrite(const v1::FramesRequest*, grpc::WriteOptions) { ++num_writes; }
  int num_writes = 0;
};

v1::FramesRequest Message(size_t bytes) {
  v1::FramesRequest message;
  message.set_token(std::string(bytes, 't'));
  return message;
}

TEST(WriteQueueTest, WhatWaitsIsChargedAndEndsTheStreamWhereThereIsNoRoom) {
  MemoryBudget budget(kLimit);
  Stream stream;
  WriteQueue<Stream, v1::FramesRequest> writes(&stream, 100, &budget, "peer");
  EXPECT_TRUE(writes.Push(Message(1000)));
  EXPECT_EQ(budget.held_bytes(), 0) << "gRPC has it";
  EXPECT_TRUE(writes.Push(Message(2000)));
  EXPECT_GE(budget.held_bytes(), 4000);
  EXPECT_TRUE(writes.Push(Message(2000)));
  EXPECT_FALSE(writes.Push(Message(2000)));
  EXPECT_LE(budget.held_bytes(), kLimit);
  writes.OnWriteDone(true);
  EXPECT_EQ(stream.num_writes, 2);
  EXPECT_TRUE(writes.Push(Message(2000)));
  writes.Close();
  EXPECT_EQ(budget.held_bytes(), 0);
}

TEST(WriteQueueTest, MoreMessagesThanMayWaitAreRefused) {
  MemoryBudget budget(kLimit);
  Stream stream;
  WriteQueue<Stream, v1::FramesRequest> writes(&stream, 2, &budget, "peer");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(writes.Push(Message(1)));
  EXPECT_FALSE(writes.Push(Message(1)));
}

}  // namespace
}  // namespace tandem
