#include "runtime/protocol/tombstones.h"

#include "gmock/gmock.h"

namespace tandem {
namespace {

AttemptId Id(uint64_t counter) { return {.request = {.counter = counter}, .attempt = 1}; }

TEST(TombstonesTest, RefuseUntilTheDeadline) {
  Tombstones tombstones(4);
  EXPECT_TRUE(tombstones.Admits(Id(1)));
  EXPECT_TRUE(tombstones.Add(Id(1), /*deadline_us=*/100, /*now_us=*/0));
  EXPECT_FALSE(tombstones.Admits(Id(1)));
  EXPECT_TRUE(tombstones.Admits(Id(2)));
  tombstones.Expire(99);
  EXPECT_FALSE(tombstones.Admits(Id(1)));
  tombstones.Expire(100);
  EXPECT_TRUE(tombstones.Admits(Id(1)));
  EXPECT_EQ(tombstones.size(), 0);
}

TEST(TombstonesTest, AllWhoseTimeHasComeExpireTogether) {
  Tombstones tombstones(4);
  for (const int i : {1, 2, 3}) tombstones.Add(Id(i), /*deadline_us=*/100 * i, /*now_us=*/0);
  tombstones.Expire(200);
  EXPECT_EQ(tombstones.size(), 1);
  EXPECT_FALSE(tombstones.Admits(Id(3)));
}

TEST(TombstonesTest, KeepNothingPastItsDeadline) {
  Tombstones tombstones(4);
  EXPECT_FALSE(tombstones.Add(Id(1), 100, 100));
  EXPECT_EQ(tombstones.size(), 0);
}

TEST(TombstonesTest, ARepeatedAbortMovesTheDeadline) {
  Tombstones tombstones(4);
  for (const int64_t deadline_us : {100, 200, 300}) tombstones.Add(Id(1), deadline_us, 0);
  EXPECT_EQ(tombstones.size(), 1);
  tombstones.Expire(250);
  EXPECT_FALSE(tombstones.Admits(Id(1)));
  tombstones.Expire(300);
  EXPECT_TRUE(tombstones.Admits(Id(1)));
}

TEST(TombstonesTest, AreBoundedAndDropTheOneThatWouldExpireFirst) {
  Tombstones tombstones(2);
  tombstones.Add(Id(1), 300, 0);
  tombstones.Add(Id(2), 100, 0);
  tombstones.Add(Id(3), 200, 0);
  EXPECT_EQ(tombstones.size(), 2);
  EXPECT_FALSE(tombstones.Admits(Id(1)));
  EXPECT_TRUE(tombstones.Admits(Id(2)));
  EXPECT_FALSE(tombstones.Admits(Id(3)));
}

}  // namespace
}  // namespace tandem
