#include "runtime/protocol/grant_policy.h"

#include <optional>

#include "gmock/gmock.h"

namespace tandem {
namespace {

AttemptId Id(uint64_t counter) { return {.request = {.counter = counter}, .attempt = 1}; }

TEST(GrantPolicyTest, StaysUnderHalfThePool) {
  GrantPolicy policy(20);
  for (const uint64_t id : {1, 2, 3}) policy.Want(Id(id), id, 4);
  EXPECT_EQ(policy.Next(20), Id(1));
  EXPECT_EQ(policy.Next(20), Id(2));
  EXPECT_EQ(policy.Next(20), std::nullopt);
  EXPECT_EQ(policy.granted_blocks(), 8);
  policy.Remove(Id(1));
  EXPECT_EQ(policy.Next(20), Id(3));
}

TEST(GrantPolicyTest, ExactlyHalfIsTooMuch) {
  GrantPolicy policy(20);
  policy.Want(Id(1), 1, 5);
  policy.Want(Id(2), 2, 5);
  EXPECT_EQ(policy.Next(20), Id(1));
  EXPECT_EQ(policy.Next(20), std::nullopt);
}

TEST(GrantPolicyTest, AlwaysGrantsOneThatFitsWhileNoOtherIs) {
  GrantPolicy policy(20);
  policy.Want(Id(1), 1, 20);
  EXPECT_EQ(policy.Next(19), std::nullopt);
  EXPECT_EQ(policy.wanted_blocks(), 20);
  EXPECT_EQ(policy.Next(20), Id(1));
}

TEST(GrantPolicyTest, TheOldestIsNotOvertakenWhicheverStartedFirst) {
  GrantPolicy policy(20);
  policy.Want(Id(1), 7, 1);
  policy.Want(Id(9), 3, 8);
  EXPECT_EQ(policy.wanted_blocks(), 8);
  EXPECT_EQ(policy.oldest_order(), 3u);
  EXPECT_EQ(policy.Next(7), std::nullopt);
  EXPECT_EQ(policy.Next(8), Id(9));
  EXPECT_EQ(policy.Next(8), Id(1));
}

TEST(GrantPolicyTest, RemovingOneThatWaitsLetsTheNextOneGo) {
  GrantPolicy policy(20);
  policy.Want(Id(1), 1, 8);
  policy.Want(Id(2), 2, 2);
  policy.Remove(Id(1));
  policy.Remove(Id(7));
  EXPECT_EQ(policy.Next(2), Id(2));
  EXPECT_EQ(policy.num_waiting(), 0);
  policy.Remove(Id(2));
  policy.Remove(Id(2));
  EXPECT_EQ(policy.granted_blocks(), 0);
}

}  // namespace
}  // namespace tandem
