#include "runtime/protocol/grant_policy.h"

#include <optional>

#include "gmock/gmock.h"

namespace tandem {
namespace {

TEST(GrantPolicyTest, StaysUnderHalfThePool) {
  GrantPolicy policy(20);
  for (const JobId job : {1, 2, 3}) policy.Want(job, 4);
  EXPECT_EQ(policy.Next(20), 1u);
  EXPECT_EQ(policy.Next(20), 2u);
  EXPECT_EQ(policy.Next(20), std::nullopt);
  EXPECT_EQ(policy.granted_blocks(), 8);
  policy.Remove(1);
  EXPECT_EQ(policy.Next(20), 3u);
}

TEST(GrantPolicyTest, ExactlyHalfIsTooMuch) {
  GrantPolicy policy(20);
  policy.Want(1, 5);
  policy.Want(2, 5);
  EXPECT_EQ(policy.Next(20), 1u);
  EXPECT_EQ(policy.Next(20), std::nullopt);
}

TEST(GrantPolicyTest, AlwaysGrantsOneThatFitsWhileNoOtherIs) {
  GrantPolicy policy(20);
  policy.Want(1, 20);
  EXPECT_EQ(policy.Next(19), std::nullopt);
  EXPECT_EQ(policy.wanted_blocks(), 20);
  EXPECT_EQ(policy.Next(20), 1u);
}

TEST(GrantPolicyTest, TheOldestIsNotOvertakenWhicheverStartedFirst) {
  GrantPolicy policy(20);
  policy.Want(7, 1);
  policy.Want(3, 8);
  EXPECT_EQ(policy.wanted_blocks(), 8);
  EXPECT_EQ(policy.oldest(), 3u);
  EXPECT_EQ(policy.Next(7), std::nullopt);
  EXPECT_EQ(policy.Next(8), 3u);
  EXPECT_EQ(policy.Next(8), 7u);
}

TEST(GrantPolicyTest, RemovingOneThatWaitsLetsTheNextOneGo) {
  GrantPolicy policy(20);
  policy.Want(1, 8);
  policy.Want(2, 2);
  policy.Remove(1);
  policy.Remove(7);
  EXPECT_EQ(policy.Next(2), 2u);
  EXPECT_EQ(policy.num_waiting(), 0);
  policy.Remove(2);
  policy.Remove(2);
  EXPECT_EQ(policy.granted_blocks(), 0);
}

}  // namespace
}  // namespace tandem
