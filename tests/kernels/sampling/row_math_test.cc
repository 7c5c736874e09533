#include "kernels/sampling/row_math.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 8;

class RowMathTest : public testing::TestWithParam<const RowMath*> {};

TEST_P(RowMathTest, HasTheBitsOfTheGenericPath) {
  SCOPED_TRACE(kSeed);
  const RowMath& math = *GetParam();
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 400; ++round) {
    std::normal_distribution<float> normal(0.0f, round % 2 == 0 ? 3.0f : 60.0f);
    std::vector<float> row(1 + random() % 700);
    for (float& logit : row) logit = normal(random);
    if (round % 3 == 0) row[random() % row.size()] = -std::numeric_limits<float>::infinity();
    if (round % 7 == 0) row[random() % row.size()] = std::nanf("");
    const int64_t count = static_cast<int64_t>(row.size());
    EXPECT_EQ(math.count_not_finite(row.data(), count),
              kRowMathGeneric.count_not_finite(row.data(), count));
    if (round % 7 == 0) continue;
    const float max = math.max(row.data(), count);
    EXPECT_EQ(max, kRowMathGeneric.max(row.data(), count));
    EXPECT_EQ(max, *std::max_element(row.begin(), row.end()));
    EXPECT_EQ(math.count_above(row.data(), count, row[0]),
              std::count_if(row.begin(), row.end(), [&](float x) { return x > row[0]; }));
    float lanes[2][16] = {};
    math.add_exp(row.data(), count, max, lanes[0]);
    kRowMathGeneric.add_exp(row.data(), count, max, lanes[1]);
    EXPECT_EQ(std::memcmp(lanes[0], lanes[1], sizeof(lanes[0])), 0);
    std::vector<uint64_t> weights(row.size());
    std::vector<uint64_t> expected(row.size());
    const float temperature = round % 5 == 0 ? 1e-30f : 0.7f;
    EXPECT_EQ(
        math.weights(row.data(), count, max, temperature, 0x1p44f, weights.data()),
        kRowMathGeneric.weights(row.data(), count, max, temperature, 0x1p44f, expected.data()));
    EXPECT_EQ(weights, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowMathTest,
                         testing::ValuesIn(SupportedRowMaths().begin(), SupportedRowMaths().end()),
                         [](const auto& test) { return std::string(test.param->name); });

}  // namespace
}  // namespace tandem
