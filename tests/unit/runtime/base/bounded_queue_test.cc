#include "runtime/base/bounded_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace tandem {
namespace {

using ::testing::ElementsAre;

TEST(BoundedQueueTest, RefusesWhenFullButAlwaysTakesWhatMustNotBeLost) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.PushAlways(4);
  EXPECT_THAT(queue.Drain(), ElementsAre(1, 2, 4));
  EXPECT_TRUE(queue.TryPush(5));
}

TEST(BoundedQueueTest, KeepsEachProducersOrder) {
  constexpr int kItems = 10000;
  BoundedQueue<std::pair<int, int>> queue(1 << 20);
  auto produce = [&](int producer) {
    for (int i = 0; i < kItems; ++i) queue.PushAlways({producer, i});
  };
  std::thread a(produce, 0), b(produce, 1);
  int next[2] = {0, 0};
  while (next[0] < kItems || next[1] < kItems) {
    queue.WaitFor(std::chrono::seconds(10));
    for (const auto& [producer, i] : queue.Drain()) {
      ASSERT_EQ(i, next[producer]);
      ++next[producer];
    }
  }
  a.join();
  b.join();
  EXPECT_EQ(queue.size(), 0u);
}

TEST(BoundedQueueTest, WakeEndsAWaitWithoutAnItem) {
  BoundedQueue<int> queue(1);
  std::thread waker([&] { queue.Wake(); });
  queue.WaitFor(std::chrono::hours(1));  // Would hang without the wake.
  waker.join();
  EXPECT_EQ(queue.size(), 0u);
}

TEST(BoundedQueueTest, AClosedQueueTakesNothingAndReturnsWhatWasLeft) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.PushAlways(1));
  EXPECT_THAT(queue.Close(), ElementsAre(1));
  EXPECT_FALSE(queue.TryPush(2));
  EXPECT_FALSE(queue.PushAlways(3));
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace tandem
