// Draws against the probabilities they should have, computed in double with the C library.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sampling/sampler.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

absl::StatusOr<SampleResult> Sample(std::span<const float> logits, const SampleQuery& args) {
  TANDEM_ASSIGN_OR_RETURN(const ScoredRow row, ScoredRow::Make(logits));
  return Sample(row, args);
}

constexpr int kNumDraws = 100'000;
constexpr uint64_t kSeed = 99;

struct Case {
  std::string name;
  float temperature;
  int top_k;
  float top_p;
};

// A long-tailed row over two pieces of 4,096 ids: most ids share what is left by twenty.
std::vector<float> MakeRow() {
  std::mt19937_64 random(kSeed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> row(5000);
  for (float& logit : row) logit = normal(random) - 5.0f;
  for (int i = 0; i < 20; ++i) row[i * 250] = normal(random) + 3.0f;
  return row;
}

std::vector<double> Probabilities(const std::vector<float>& row, const Case& c) {
  std::vector<int> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return row[a] > row[b]; });
  if (c.top_k > 0) ids.resize(c.top_k);
  const auto weight = [&](int id) {
    return std::exp(static_cast<double>(row[id]) / static_cast<double>(c.temperature));
  };
  double total = 0;
  for (const int id : ids) total += weight(id);
  double kept_total = 0;
  size_t kept = 0;
  while (kept < ids.size() && kept_total < static_cast<double>(c.top_p) * total) {
    kept_total += weight(ids[kept++]);
  }
  std::vector<double> probabilities(row.size());
  for (size_t i = 0; i < kept; ++i) probabilities[ids[i]] = weight(ids[i]) / kept_total;
  return probabilities;
}

class SamplerDistributionTest : public testing::TestWithParam<Case> {
 protected:
  // Judges many draws, whose keys `set_key(i, query)` chooses.
  template <typename SetKey>
  void ExpectDrawsFit(const SetKey& set_key) {
    const Case& c = GetParam();
    std::vector<int> counts(row_.size());
    for (int i = 0; i < kNumDraws; ++i) {
      SampleQuery query{.temperature = c.temperature, .top_k = c.top_k, .top_p = c.top_p};
      set_key(i, &query);
      const auto result = Sample(row_, query);
      ASSERT_TRUE(result.ok());
      ++counts[result->token];
    }
    ExpectFit(counts, Probabilities(row_, c));
  }

 private:
  // Ids that are too rare for the test share one cell.
  static void ExpectFit(const std::vector<int>& counts, const std::vector<double>& probabilities) {
    double chi_squared = 0;
    double rest_expected = 0;
    double rest_count = 0;
    int cells = 0;
    const auto add = [&](double count, double expected) {
      chi_squared += (count - expected) * (count - expected) / expected;
      ++cells;
    };
    for (size_t id = 0; id < counts.size(); ++id) {
      const double expected = probabilities[id] * kNumDraws;
      if (expected == 0) {
        EXPECT_EQ(counts[id], 0) << "id " << id << " should be cut";
      } else if (expected < 10) {
        rest_expected += expected;
        rest_count += counts[id];
      } else {
        add(counts[id], expected);
      }
    }
    if (rest_expected > 0) add(rest_count, rest_expected);
    const double freedom = std::max(cells - 1, 1);
    // Four and a half standard deviations of chi-squared.
    EXPECT_LT(chi_squared, freedom + 4.5 * std::sqrt(2 * freedom)) << cells << " cells";
    EXPECT_GT(cells, 1);
  }

  const std::vector<float> row_ = MakeRow();
};

TEST_P(SamplerDistributionTest, PositionsOfOneSeedAreDrawnAsTheProbabilitiesSay) {
  ExpectDrawsFit([](int i, SampleQuery* query) {
    query->seed = kSeed;
    query->position = static_cast<uint64_t>(i);
  });
}

INSTANTIATE_TEST_SUITE_P(All, SamplerDistributionTest,
                         testing::Values(Case{"plain", 1.0f, 0, 1.0f}, Case{"cool", 0.6f, 0, 1.0f},
                                         Case{"hot", 2.0f, 0, 1.0f}, Case{"top_k", 1.0f, 7, 1.0f},
                                         Case{"top_p", 1.0f, 0, 0.9f},
                                         Case{"top_p_with_tail", 1.0f, 0, 0.995f},
                                         Case{"top_k_and_top_p", 0.8f, 15, 0.8f}),
                         [](const auto& test) { return test.param.name; });

class SamplerKeyTest : public SamplerDistributionTest {};

TEST_P(SamplerKeyTest, SeedsAndChoicesOfOnePositionAreDrawnAsTheProbabilitiesSay) {
  ExpectDrawsFit([](int i, SampleQuery* query) {
    query->seed = static_cast<uint64_t>(i / 4);
    query->choice = static_cast<uint32_t>(i % 4);
    query->position = 7;
  });
}

INSTANTIATE_TEST_SUITE_P(All, SamplerKeyTest, testing::Values(Case{"plain", 1.0f, 0, 1.0f}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tandem
