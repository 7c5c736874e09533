#include "runtime/transport/frame_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kBlockBytes = 1 << 20;

FrameHeader Header(uint32_t ordinal) {
  return {.reservation = {.index = 3, .generation = 1}, .ordinal = ordinal};
}

std::vector<uint64_t> PopAll(FrameQueue* queue) {
  std::vector<uint64_t> sends;
  while (!queue->empty()) sends.push_back(queue->Pop().send_id);
  return sends;
}

TEST(FrameQueueTest, FramesLeaveInTheOrderOfSends) {
  FrameQueue queue;
  EXPECT_TRUE(queue.empty());
  queue.Push(Header(5), /*block=*/7, /*send_id=*/11);
  queue.Push(Header(4), 6, 10);
  EXPECT_EQ(queue.front().send_id, 11u);
  const FrameQueue::Frame first = queue.Pop();
  EXPECT_EQ(first.header.ordinal, 5u);
  EXPECT_EQ(first.block, 7);
  EXPECT_EQ(first.send_id, 11u);
  EXPECT_FALSE(first.probe());
  EXPECT_THAT(PopAll(&queue), ElementsAre(10));
}

TEST(FrameQueueTest, ProbesGoFirstAndAreNobodysSends) {
  FrameQueue queue;
  queue.PushProbes(kBlockBytes);
  queue.Push(Header(0), 1, 0);  // A send's number may be any.
  for (int32_t i = 0; i < NumProbes(kBlockBytes); ++i) {
    const FrameQueue::Frame probe = queue.Pop();
    EXPECT_TRUE(probe.probe());
    EXPECT_EQ(probe.header.ordinal, static_cast<uint32_t>(i));
    EXPECT_EQ(probe.header.reservation.index, static_cast<uint32_t>(NumProbes(kBlockBytes)));
    EXPECT_EQ(probe.header.length_bytes, static_cast<uint32_t>(kBlockBytes));
  }
  EXPECT_FALSE(queue.Pop().probe());
  queue.PushProbes(kBlockBytes);
  EXPECT_FALSE(queue.Withdraw(0));
  EXPECT_THAT(queue.Clear(), IsEmpty());
  EXPECT_TRUE(queue.empty());
}

TEST(FrameQueueTest, WhatWaitsIsWithdrawnAndNothingElse) {
  FrameQueue queue;
  for (const uint64_t send : {1, 2, 3, 4}) queue.Push(Header(0), 0, send);
  queue.Pop();
  EXPECT_FALSE(queue.Withdraw(1)) << "it is on its way";
  EXPECT_TRUE(queue.Withdraw(3));
  EXPECT_FALSE(queue.Withdraw(3));
  EXPECT_THAT(PopAll(&queue), ElementsAre(2, 4));
}

TEST(FrameQueueTest, WhatIsLeftIsToldOnce) {
  FrameQueue queue;
  for (const uint64_t send : {8, 9}) queue.Push(Header(0), 0, send);
  EXPECT_THAT(queue.Clear(), ElementsAre(8, 9));
  EXPECT_THAT(queue.Clear(), IsEmpty());
}

}  // namespace
}  // namespace tandem
