#include "runtime/protocol/tombstones.h"

#include "gmock/gmock.h"
#include "runtime/protocol/identity.h"

namespace tandem {
namespace {

TEST(TombstonesTest, RefuseUntilTheDeadline) {
  Tombstones<JobId> tombstones(4);
  EXPECT_TRUE(tombstones.Admits(1));
  EXPECT_TRUE(tombstones.Add(1, /*deadline_us=*/100, /*now_us=*/0));
  EXPECT_FALSE(tombstones.Admits(1));
  EXPECT_TRUE(tombstones.Admits(2));
  tombstones.Expire(99);
  EXPECT_FALSE(tombstones.Admits(1));
  tombstones.Expire(100);
  EXPECT_TRUE(tombstones.Admits(1));
  EXPECT_EQ(tombstones.size(), 0);
}

TEST(TombstonesTest, AllWhoseTimeHasComeExpireTogether) {
  Tombstones<JobId> tombstones(4);
  for (const int i : {1, 2, 3}) tombstones.Add(i, /*deadline_us=*/100 * i, /*now_us=*/0);
  tombstones.Expire(200);
  EXPECT_EQ(tombstones.size(), 1);
  EXPECT_FALSE(tombstones.Admits(3));
}

TEST(TombstonesTest, KeepNothingPastItsDeadline) {
  Tombstones<JobId> tombstones(4);
  EXPECT_FALSE(tombstones.Add(1, 100, 100));
  EXPECT_EQ(tombstones.size(), 0);
}

TEST(TombstonesTest, ARepeatedAbortMovesTheDeadline) {
  Tombstones<JobId> tombstones(4);
  for (const int64_t deadline_us : {100, 200, 300}) tombstones.Add(1, deadline_us, 0);
  EXPECT_EQ(tombstones.size(), 1);
  tombstones.Expire(250);
  EXPECT_FALSE(tombstones.Admits(1));
  tombstones.Expire(300);
  EXPECT_TRUE(tombstones.Admits(1));
}

TEST(TombstonesTest, AreBoundedAndDropTheOneThatWouldExpireFirst) {
  Tombstones<JobId> tombstones(2);
  tombstones.Add(1, 300, 0);
  tombstones.Add(2, 100, 0);
  tombstones.Add(3, 200, 0);
  EXPECT_EQ(tombstones.size(), 2);
  EXPECT_FALSE(tombstones.Admits(1));
  EXPECT_TRUE(tombstones.Admits(2));
  EXPECT_FALSE(tombstones.Admits(3));
}

}  // namespace
}  // namespace tandem
