#include "services/server/told_times.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace tandem {
namespace {

TEST(ToldTimesTest, IsToldAtThePowersOfTwo) {
  ToldTimes times;
  for (const uint64_t told : {1, 2, 0, 4, 0, 0, 0, 8}) {
    EXPECT_EQ(times.Happened("a"), told > 0 ? std::optional(told) : std::nullopt);
  }
  EXPECT_EQ(times.Happened("b"), 1u);
}

TEST(ToldTimesTest, StrangersWithManyNamesFillNoMemory) {
  ToldTimes times;
  for (size_t i = 0; i < ToldTimes::kMaxKeys; ++i) {
    EXPECT_EQ(times.Happened(std::to_string(i)), 1u);
  }
  // Whoever comes now is one more of the same.
  EXPECT_EQ(times.Happened("x"), 1u);
  EXPECT_EQ(times.Happened("y"), 2u);
  EXPECT_EQ(times.Happened("z"), std::nullopt);
  EXPECT_EQ(times.Happened("0"), 2u);
}

}  // namespace
}  // namespace tandem
