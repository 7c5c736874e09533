#include "runtime/base/bounded_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/eventually.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

constexpr std::chrono::seconds kPatience{10};

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

TEST(BoundedQueueTest, AWakeEndsOneWaitAlsoIfItComesBefore) {
  BoundedQueue<int> queue(1);
  queue.Wake();
  std::atomic<bool> woken{false};
  std::thread waiter([&] {
    queue.WaitFor(std::chrono::hours(1));
    woken = true;
  });
  EXPECT_TRUE(Eventually([&] { return woken.load(); }, kPatience));
  if (!woken) queue.Wake();
  waiter.join();
  std::thread producer([&] { EXPECT_TRUE(queue.TryPush(1)); });
  queue.WaitFor(std::chrono::hours(1));
  EXPECT_EQ(queue.size(), 1u) << "the next wait is for an item";
  producer.join();
}

TEST(BoundedQueueTest, EveryItemEndsAWait) {
  constexpr size_t kItems = 20;
  BoundedQueue<int> queue(1);
  std::atomic<size_t> taken{0};
  std::thread consumer([&] {
    while (taken < kItems) {
      queue.WaitFor(std::chrono::hours(1));
      taken += queue.Drain().size();
    }
  });
  for (size_t i = 1; i <= kItems && !testing::Test::HasFailure(); ++i) {
    EXPECT_TRUE(i % 2 == 0 ? queue.PushAlways(1) : queue.TryPush(1));
    EXPECT_TRUE(Eventually([&] { return taken == i; }, kPatience)) << i;
  }
  if (taken < kItems) {
    taken = kItems;
    queue.Wake();
  }
  consumer.join();
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
