#include "runtime/base/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

bool MayPass(bool condition) { return TANDEM_GUARD("guard_test_only", condition); }

TEST(GuardTest, PassesTheConditionOnUntilSwitchedOff) {
  Guard* const guard = FindGuard("guard_test_only");
  ASSERT_NE(guard, nullptr) << "registers before it is first evaluated";
  EXPECT_TRUE(MayPass(true));
  EXPECT_EQ(guard->rejections(), 0u);
  EXPECT_FALSE(MayPass(false));
  EXPECT_EQ(guard->rejections(), 1u);
  guard->set_enabled(false);
  EXPECT_TRUE(MayPass(false));
  guard->set_enabled(true);
  EXPECT_FALSE(MayPass(false));
  EXPECT_EQ(FindGuard("no such guard"), nullptr);
}

}  // namespace
}  // namespace tandem
