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
    float max = 0, expected_max = 0;
    const bool all_finite = math.scan(row.data(), count, &max);
    EXPECT_EQ(all_finite, kRowMathGeneric.scan(row.data(), count, &expected_max));
    EXPECT_EQ(all_finite,
              std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }));
    if (round % 7 == 0) continue;
    EXPECT_EQ(max, expected_max);
    EXPECT_EQ(max, *std::max_element(row.begin(), row.end()));
    EXPECT_EQ(math.count_above(row.data(), count, row[0]),
              std::count_if(row.begin(), row.end(), [&](float x) { return x > row[0]; }));
    float lanes[2][16] = {};
    math.add_exp(row.data(), count, max, lanes[0]);
    kRowMathGeneric.add_exp(row.data(), count, max, lanes[1]);
    EXPECT_EQ(std::memcmp(lanes[0], lanes[1], sizeof(lanes[0])), 0);
    std::vector<float> weights(row.size());
    std::vector<float> expected(row.size());
    const float temperature = round % 5 == 0 ? 1e-30f : round % 5 == 1 ? 1.0f : 0.7f;
    const uint64_t total = math.weigh(row.data(), count, max, temperature, 0x1p44f, weights.data());
    EXPECT_EQ(total,
              kRowMathGeneric.weigh(row.data(), count, max, temperature, 0x1p44f, expected.data()));
    EXPECT_EQ(weights, expected);
    uint64_t sum = 0;
    for (const float weight : weights) sum += WholeWeight(weight);
    EXPECT_EQ(total, sum);
    const float low = std::min(row[0], row.back()), high = std::max(row[0], row.back());
    uint64_t above = 5, expected_above = 5;
    std::vector<int32_t> places(row.size() + 16), expected_places;
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] > high) expected_above += WholeWeight(weights[i]);
      if (row[i] >= low && row[i] <= high) expected_places.push_back(static_cast<int32_t>(i));
    }
    places.resize(static_cast<size_t>(
        math.select(row.data(), weights.data(), count, low, high, &above, places.data())));
    EXPECT_EQ(above, expected_above);
    EXPECT_EQ(places, expected_places);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowMathTest,
                         testing::ValuesIn(SupportedRowMaths().begin(), SupportedRowMaths().end()),
                         [](const auto& test) { return std::string(test.param->name); });

}  // namespace
}  // namespace tandem
