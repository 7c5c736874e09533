#include "runtime/engine/expiry_queue.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(ExpiryQueue, GivesKeysInOrderOfTheirTimeOnceItHasCome) {
  ExpiryQueue<int> queue;
  EXPECT_EQ(queue.next_us(), kNever);
  queue.Set(1, 30);
  queue.Set(2, 10);
  queue.Set(3, 20);
  EXPECT_EQ(queue.next_us(), 10);
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
  queue.Remove(2);
  queue.Remove(2);
  EXPECT_EQ(queue.TimeOf(2), std::nullopt);
  EXPECT_EQ(queue.PopDue(49), std::nullopt);
  EXPECT_EQ(queue.PopDue(50), 1);
  EXPECT_EQ(queue.next_us(), kNever);
}

}  // namespace
}  // namespace tandem
