#include "runtime/base/number_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem {
namespace {

TEST(NumberTextTest, SaysTheNumberThatWasGiven) {
  EXPECT_EQ(NumberText(100.0001), "100.0001");
  EXPECT_EQ(NumberText(100.0000001), "100.0000001");
  EXPECT_EQ(NumberText(1e308), "1e+308");
  EXPECT_EQ(NumberText(-0.7), "-0.7");
  EXPECT_EQ(NumberText(2), "2");
  EXPECT_EQ(NumberText(std::numeric_limits<double>::denorm_min()), "5e-324");
  EXPECT_EQ(NumberText(-std::numeric_limits<double>::max()), "-1.7976931348623157e+308");
  EXPECT_EQ(NumberText(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(NumberText(std::nan("")), "nan");
}

TEST(NumberTextTest, AFloatIsNotWhatItIsAsADouble) {
  EXPECT_EQ(NumberText(2.1f), "2.1");
  EXPECT_EQ(NumberText(100.0001f), "100.0001");
  EXPECT_EQ(NumberText(std::nextafter(1.0f, 2.0f)), "1.0000001");
}

}  // namespace
}  // namespace tandem
