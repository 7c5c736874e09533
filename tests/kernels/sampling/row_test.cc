#include "kernels/sampling/row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/rows.h"
#include "kernels/support/vector_math.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 17;
constexpr int kSizes[] = {1, 2, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 10000, 50257};

// With `step` above 0 the logits are multiples of it, so many are equal.
std::vector<float> RandomRow(std::mt19937_64& random, int size, float step) {
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> row(size);
  for (float& logit : row) {
    logit = normal(random);
    if (step > 0) logit = std::round(logit / step) * step;
  }
  return row;
}

std::vector<int32_t> SortedIds(const std::vector<float>& row) {
  std::vector<int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  return ids;
}

TEST(RowTest, HighestIdsAreThoseOfAStableSort) {
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (const int size : kSizes) {
    for (const float step : {0.0f, 0.5f, 100.0f}) {
      const std::vector<float> row = RandomRow(random, size, step);
      const std::vector<int32_t> sorted = SortedIds(row);
      RowMaxima maxima;
      FindMaxima(row, &maxima);
      EXPECT_EQ(maxima.max, row[sorted[0]]);
      EXPECT_EQ(HighestId(row, maxima), sorted[0]);
      for (const int64_t count : {0, 1, 5, 20, 300, 1'000'000}) {
        const size_t expected = std::min<size_t>(count, row.size());
        EXPECT_EQ(HighestIds(row, maxima, count),
                  std::vector<int32_t>(sorted.begin(), sorted.begin() + expected))
            << size << " ids, " << count << " best";
      }
      for (const size_t place : {size_t{0}, sorted.size() / 2, sorted.size() - 1}) {
        EXPECT_EQ(CountBetter(row, sorted[place]), static_cast<int32_t>(place));
      }
    }
  }
}

// docs/numerics.md, Rows, one by one: pieces, each in lanes and the tree, added in order.
float LogSumExpByTheRules(const std::vector<float>& row, float max) {
  float sum = 0.0f;
  for (size_t first = 0; first < row.size(); first += kVocabularyPiece) {
    const size_t count = std::min<size_t>(kVocabularyPiece, row.size() - first);
    float lanes[kLanes] = {};
    for (size_t i = 0; i < count; ++i) lanes[i % kLanes] += Exp(row[first + i] - max);
    sum += SumLanes(lanes);
  }
  return Log(sum);
}

TEST(RowTest, LogSumExpHasTheOrderOfTheRules) {
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (const int size : kSizes) {
    const std::vector<float> row = RandomRow(random, size, 0.0f);
    RowMaxima maxima;
    FindMaxima(row, &maxima);
    EXPECT_EQ(maxima.max, *std::max_element(row.begin(), row.end()));
    EXPECT_EQ(std::bit_cast<uint32_t>(LogSumExp(row, maxima.max)),
              std::bit_cast<uint32_t>(LogSumExpByTheRules(row, maxima.max)))
        << size;
  }
}

TEST(RowTest, LogSumExpIsCloseToTheExactSum) {
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (const int size : kSizes) {
    const std::vector<float> row = RandomRow(random, size, 0.0f);
    const float max = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit) - max);
    EXPECT_NEAR(LogSumExp(row, max), std::log(sum), 2e-6);
  }
}

TEST(RowTest, OneBadLogitAnywhereIsSeen) {
  for (const int size : {1, 17, 300}) {
    std::vector<float> row(size, 1.0f);
    row[size / 2] = std::numeric_limits<float>::max();
    RowMaxima maxima;
    EXPECT_TRUE(FindMaxima(row, &maxima));
    for (int place = 0; place < size; ++place) {
      for (const float bad : {std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(), std::nanf("")}) {
        std::vector<float> broken = row;
        broken[place] = bad;
        EXPECT_FALSE(FindMaxima(broken, &maxima)) << place;
      }
    }
  }
}

}  // namespace
}  // namespace tandem
