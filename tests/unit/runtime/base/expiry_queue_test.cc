#include "runtime/base/expiry_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(ExpiryQueue, GivesKeysInOrderOfTheirTimeOnceItHasCome) {
  ExpiryQueue<int> queue;
  EXPECT_EQ(queue.next_us(), kNeverUs);
  queue.Set(1, 30);
  queue.Set(2, 10);
  queue.Set(3, 20);
  EXPECT_EQ(queue.next_us(), 10);
  EXPECT_THAT(queue.in_order(),
              testing::ElementsAre(std::pair(10, 2), std::pair(20, 3), std::pair(30, 1)));
  EXPECT_EQ(queue.PopDue(9), std::nullopt);
  EXPECT_EQ(queue.PopDue(20), 2);
  EXPECT_EQ(queue.PopDue(20), 3);
  EXPECT_EQ(queue.PopDue(20), std::nullopt);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(ExpiryQueue, SetMovesAndRemoveForgets) {
  ExpiryQueue<int> queue;
  queue.Set(1, 10);
  queue.Set(1, 50);
  queue.Set(2, 20);
  EXPECT_EQ(queue.TimeOf(1), 50);
  EXPECT_TRUE(queue.contains(2));
  queue.Remove(2);
  queue.Remove(2);
  EXPECT_EQ(queue.TimeOf(2), std::nullopt);
  EXPECT_FALSE(queue.contains(2));
  EXPECT_EQ(queue.PopDue(49), std::nullopt);
  EXPECT_EQ(queue.PopDue(50), 1);
  EXPECT_EQ(queue.next_us(), kNeverUs);
}

}  // namespace
}  // namespace tandem
