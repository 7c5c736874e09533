#include "kernels/sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/sampling/philox.h"
#include "kernels/support/vector_math.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kSeed = 4711;

absl::StatusOr<SampleResult> Sample(std::span<const float> logits, const SampleQuery& args) {
  TANDEM_ASSIGN_OR_RETURN(const ScoredRow row, ScoredRow::Make(logits));
  return Sample(row, args);
}

absl::StatusOr<SampleResult> Score(std::span<const float> logits, int32_t token, int32_t num_top) {
  TANDEM_ASSIGN_OR_RETURN(const ScoredRow row, ScoredRow::Make(logits));
  return Score(row, token, num_top);
}

// As TokenMask has it.
std::vector<uint32_t> WordsOf(const std::vector<bool>& allowed) {
  std::vector<uint32_t> words((allowed.size() + 31) / 32);
  for (size_t id = 0; id < allowed.size(); ++id) {
    if (allowed[id]) words[id / 32] += uint32_t{1} << id % 32;
  }
  return words;
}

// The contract in plain words: add the bias, leave out what is masked or not allowed, sort
// everything, cut, walk through the ids in order. An empty list allows all.
int32_t SlowSample(std::vector<float> logits, const SampleQuery& args,
                   const std::vector<bool>& allowed = {}) {
  for (const auto& [id, bias] : args.logit_bias) {
    if (id >= 0 && id < static_cast<int32_t>(logits.size())) logits[id] = logits[id] + bias;
  }
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    const bool masked = std::count(args.masked_tokens.begin(), args.masked_tokens.end(), id) > 0;
    if (!masked && (allowed.empty() || allowed[static_cast<size_t>(id)])) ids.push_back(id);
  }
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (args.temperature == 0) return ids[0];
  const float max = logits[ids[0]];
  const auto weight = [&](int32_t id) {
    return static_cast<uint64_t>(Exp((logits[id] - max) / args.temperature) * 0x1p44f);
  };
  if (args.top_k > 0 && static_cast<size_t>(args.top_k) < ids.size()) ids.resize(args.top_k);
  uint64_t total = 0;
  for (const int32_t id : ids) total += weight(id);
  if (args.top_p < 1) {
    const long double needed = static_cast<long double>(args.top_p) * total;
    uint64_t sum = 0;
    size_t kept = 0;
    do {
      sum += weight(ids[kept++]);
    } while (static_cast<long double>(sum) < needed);
    ids.resize(kept);
    total = sum;
  }
  std::sort(ids.begin(), ids.end());
  const uint64_t bits = RandomBits(args.seed, args.choice, args.position, RandomPurpose::kToken);
  const auto target = static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * total) >> 64);
  uint64_t sum = 0;
  for (const int32_t id : ids) {
    sum += weight(id);
    if (sum > target) return id;
  }
  return -1;
}

std::vector<float> RandomRow(std::mt19937_64& random, int size, float width, float step = 0) {
  std::normal_distribution<float> normal(0.0f, width);
  std::vector<float> row(size);
  for (float& logit : row) {
    logit = normal(random);
    if (step > 0) logit = std::round(logit / step) * step;
  }
  return row;
}

TEST(SamplerTest, AgreesWithSortingEverything) {
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const std::vector<int> sizes = {1, 2, 7, 100, 4096, 4097, 9000, 32000};
  for (int round = 0; round < 600; ++round) {
    const int size = sizes[random() % sizes.size()];
    const float width = std::vector<float>{0.1f, 2.0f, 10.0f, 200.0f}[random() % 4];
    const float step = random() % 3 == 0 ? 0.5f : 0.0f;
    const std::vector<float> row = RandomRow(random, size, width, step);
    std::vector<int32_t> masked;
    if (size > 10 && random() % 3 == 0) {
      masked = {static_cast<int32_t>(random() % size),
                static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin())};
    }
    std::vector<std::pair<int32_t, float>> bias;
    for (int32_t id = static_cast<int32_t>(random() % 3); id < size && round % 2 == 0;) {
      bias.emplace_back(id, static_cast<float>(random() % 2001) * 0.1f - 100.0f);
      id += 1 + static_cast<int32_t>(random() % (1 + static_cast<size_t>(size) / 20));
    }
    const SampleQuery args = {
        .temperature = std::vector<float>{0.0f, 0.01f, 0.5f, 1.0f, 2.0f}[random() % 5],
        .top_k = std::vector<int>{0, 0, 1, 2, 50, 5000, 100000}[random() % 7],
        .top_p = std::vector<float>{1.0f, 1.0f, 1e-9f, 0.25f, 0.5f, 0.9f, 0.999f}[random() % 7],
        .seed = random(),
        .choice = static_cast<uint32_t>(random() % 4),
        .position = random() % 10000,
        .logit_bias = bias,
        .masked_tokens = masked};
    const auto result = Sample(row, args);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->token, SlowSample(row, args))
        << "round " << round << ": " << size << " ids, temperature " << args.temperature
        << ", top_k " << args.top_k << ", top_p " << args.top_p << ", " << bias.size()
        << " with a bias, " << masked.size() << " masked";
  }
}

// Where every sixteenth id has other logits than the rest, what these tell of all is wrong.
TEST(SamplerTest, ACutIsFoundWhateverAFewIdsTell) {
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (const float shift : {-20.0f, -1.0f, 1.0f, 20.0f}) {
    std::vector<float> row = RandomRow(random, 32000, 0.5f);
    for (size_t id = 0; id < row.size(); id += 16) row[id] += shift;
    for (const float top_p : {0.01f, 0.5f, 0.97f}) {
      const SampleQuery args = {.top_p = top_p, .seed = random()};
      EXPECT_EQ(Sample(row, args)->token, SlowSample(row, args)) << shift << ", " << top_p;
    }
  }
}

TEST(SamplerTest, GreedyTakesTheLowestOfEqualIds) {
  std::vector<float> row(10000, -1.0f);
  row[4097] = row[4098] = row[9999] = 3.0f;
  EXPECT_EQ(Sample(row, {.temperature = 0})->token, 4097);
  const std::vector<int32_t> masked = {4097};
  EXPECT_EQ(Sample(row, {.temperature = 0, .masked_tokens = masked})->token, 4098);
  row[5] = -0.0f;
  row[3] = 0.0f;
  row[4097] = row[4098] = row[9999] = -1.0f;
  EXPECT_EQ(Sample(row, {.temperature = 0})->token, 3);
}

TEST(SamplerTest, TopKKeepsLowerIdsAmongEquals) {
  std::vector<float> row(1000, 0.0f);
  row[999] = 1.0f;
  std::vector<int> counts(row.size());
  for (uint64_t position = 0; position < 2000; ++position) {
    ++counts[Sample(row, {.top_k = 3, .seed = kSeed, .position = position})->token];
  }
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[999], 0);
  EXPECT_EQ(counts[0] + counts[1] + counts[999], 2000);
}

TEST(SamplerTest, TopPKeepsTheTokenThatReachesIt) {
  // Weights 4, 2, 1, 1: exactly half is reached by the first alone.
  const std::vector<float> row = {std::log(2.0f), 0.0f, std::log(4.0f), 0.0f};
  const auto drawn = [&](float top_p) {
    std::vector<int> counts(row.size());
    for (uint64_t position = 0; position < 2000; ++position) {
      ++counts[Sample(row, {.top_p = top_p, .seed = kSeed, .position = position})->token];
    }
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < 4; ++id) {
      if (counts[id] > 0) ids.push_back(id);
    }
    return ids;
  };
  EXPECT_THAT(drawn(1e-12f), ElementsAre(2));
  EXPECT_THAT(drawn(0.01f), ElementsAre(2));
  EXPECT_THAT(drawn(0.49f), ElementsAre(2));
  EXPECT_THAT(drawn(0.51f), ElementsAre(0, 2));
  EXPECT_THAT(drawn(0.74f), ElementsAre(0, 2));
  EXPECT_THAT(drawn(0.76f), ElementsAre(0, 1, 2));  // The lower id of the two equal ones.
  EXPECT_THAT(drawn(0.99f), ElementsAre(0, 1, 2, 3));
}

TEST(SamplerTest, TopPIsNotReachedByOneWeightLess) {
  // Weights 2^44, 2^44 and 1: the first is half a unit less than half of them.
  const std::vector<float> row = {0.0f, 0.0f, -30.0f};
  std::vector<int> counts(row.size());
  for (uint64_t position = 0; position < 100; ++position) {
    ++counts[Sample(row, {.top_p = 0.5f, .seed = kSeed, .position = position})->token];
  }
  EXPECT_GT(counts[1], 0);
  EXPECT_EQ(counts[0] + counts[1], 100);
}

TEST(SamplerTest, TopPIsReachedByExactlyAsMuch) {
  // The first weighs as much as all the others together, none of which comes near it.
  std::vector<float> row = {0.0f};
  for (uint64_t left = uint64_t{1} << 44; left > 0;) {
    const float logit = std::log(static_cast<float>(left)) - std::log(0x1p44f) - 1e-5f;
    row.push_back(std::clamp(logit, -30.4f, -1.0f));
    left -= static_cast<uint64_t>(Exp(row.back()) * 0x1p44f);
  }
  const std::vector<float> equal = {0.0f, 0.0f};
  for (uint64_t position = 0; position < 100; ++position) {
    const SampleQuery args = {.top_p = 0.5f, .seed = kSeed, .position = position};
    EXPECT_EQ(Sample(row, args)->token, 0);
    EXPECT_EQ(Sample(equal, args)->token, 0);
  }
}

TEST(SamplerTest, TopPIsAShareOfWhatTopKKept) {
  // Weights 4, 3, 2, 1; the best two weigh 7, of which 4 is 0.571.
  const std::vector<float> row = {std::log(4.0f), std::log(3.0f), std::log(2.0f), 0.0f};
  for (uint64_t position = 0; position < 500; ++position) {
    EXPECT_EQ(Sample(row, {.top_k = 2, .top_p = 0.56f, .seed = kSeed, .position = position})->token,
              0);
  }
}

TEST(SamplerTest, MaskedTokensAreNeverDrawn) {
  std::mt19937_64 random(kSeed);
  const std::vector<float> row = RandomRow(random, 100, 1.0f);
  std::vector<int32_t> masked(99);
  std::iota(masked.begin(), masked.end(), 0);
  masked.erase(masked.begin() + 42);
  masked.push_back(-7);      // Stop tokens outside the vocabulary,
  masked.push_back(100000);  // which is no error.
  for (uint64_t position = 0; position < 500; ++position) {
    const int32_t token =
        Sample(row, {.seed = kSeed, .position = position, .masked_tokens = masked})->token;
    EXPECT_TRUE(token == 42 || token == 99) << token;
  }
}

// From masks that allow one token to such that forbid one, and of every length.
TEST(SamplerTest, WhatIsAllowedAgreesWithSortingEverything) {
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const std::vector<int> sizes = {1, 31, 32, 33, 100, 1000, 4097, 9000, 32000};
  for (int round = 0; round < 900; ++round) {
    const int size = sizes[random() % sizes.size()];
    const float width = std::vector<float>{0.1f, 2.0f, 10.0f, 200.0f}[random() % 4];
    const float step = random() % 3 == 0 ? 0.5f : 0.0f;
    const std::vector<float> row = RandomRow(random, size, width, step);
    std::vector<bool> allowed(static_cast<size_t>(size), random() % 4 == 0);
    const uint64_t of = std::vector<uint64_t>{1, 2, 20, 300}[random() % 4];
    for (size_t id = 0; id < allowed.size(); ++id) {
      if (random() % of == 0) allowed[id] = !allowed[id];
    }
    const size_t sure = random() % allowed.size();
    allowed[sure] = true;
    std::vector<int32_t> masked;
    if (random() % 3 == 0) {
      for (int i = 0; i < 5; ++i) {
        const auto id = static_cast<int32_t>(random() % static_cast<uint64_t>(size));
        if (static_cast<size_t>(id) != sure) masked.push_back(id);
      }
    }
    std::vector<std::pair<int32_t, float>> bias;
    if (random() % 3 == 0) bias = {{0, 5.0f}, {size / 2, -50.0f}, {size - 1, 30.0f}};
    const std::vector<uint32_t> words = WordsOf(allowed);
    const SampleQuery args = {
        .temperature = std::vector<float>{0.0f, 0.01f, 0.5f, 1.0f, 2.0f}[random() % 5],
        .top_k = std::vector<int>{0, 0, 1, 2, 50, 5000, 100000}[random() % 7],
        .top_p = std::vector<float>{1.0f, 1.0f, 1e-9f, 0.25f, 0.5f, 0.9f, 0.999f}[random() % 7],
        .seed = random(),
        .choice = static_cast<uint32_t>(random() % 4),
        .position = random() % 10000,
        .logit_bias = bias,
        .masked_tokens = masked,
        .allowed_tokens = {words}};
    const auto result = Sample(row, args);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->token, SlowSample(row, args, allowed))
        << "round " << round << ": " << size << " ids, temperature " << args.temperature
        << ", top_k " << args.top_k << ", top_p " << args.top_p << ", " << bias.size()
        << " with a bias, " << masked.size() << " masked";
  }
}

TEST(SamplerTest, TopKAndTopPAreOfWhatIsAllowed) {
  // Weights 8, 4, 2, 1, 1, and the first is not allowed.
  const std::vector<float> row = {std::log(8.0f), std::log(4.0f), std::log(2.0f), 0.0f, 0.0f};
  const std::vector<uint32_t> words = {0b11110};
  const auto drawn = [&](SampleQuery args) {
    args.allowed_tokens = {words};
    std::vector<int> counts(row.size());
    for (args.position = 0; args.position < 2000; ++args.position) {
      ++counts[Sample(row, args)->token];
    }
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < 5; ++id) {
      if (counts[id] > 0) ids.push_back(id);
    }
    return ids;
  };
  EXPECT_THAT(drawn({.top_k = 2, .seed = kSeed}), ElementsAre(1, 2));
  EXPECT_THAT(drawn({.top_p = 0.49f, .seed = kSeed}), ElementsAre(1));
  EXPECT_THAT(drawn({.top_p = 0.51f, .seed = kSeed}), ElementsAre(1, 2));
  EXPECT_THAT(drawn({.temperature = 0}), ElementsAre(1));
}

TEST(SamplerTest, AMaskOfAnotherLengthAllowsWhatItNames) {
  std::vector<float> row(70, 0.0f);
  row[69] = 2.0f;
  row[40] = 1.0f;
  const std::vector<uint32_t> too_short = {0xFFFFFFFF, 0xFFFFFFFF};
  EXPECT_EQ(Sample(row, {.temperature = 0, .allowed_tokens = {too_short}})->token, 40);
  const std::vector<uint32_t> too_long = {0, 1, 0, 0xFFFFFFFF};
  EXPECT_EQ(Sample(row, {.temperature = 0, .allowed_tokens = {too_long}})->token, 32);
}

TEST(SamplerTest, WhereNothingIsAllowedAllIsMasked) {
  const std::vector<float> row(70, 0.0f);
  const std::vector<uint32_t> words(3, 0);
  const absl::Status none = Sample(row, {.allowed_tokens = {words}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(none));
  EXPECT_THAT(std::string(none.message()), HasSubstr("all 70 tokens"));
  const std::vector<uint32_t> one = {1 << 7, 0, 0};
  const std::vector<int32_t> stop = {7};
  EXPECT_TRUE(absl::IsInvalidArgument(
      Sample(row, {.masked_tokens = stop, .allowed_tokens = {one}}).status()));
}

TEST(SamplerTest, LogprobsAreOfAllTokensWhateverIsAllowed) {
  const std::vector<float> row = {1.0f, 2.0f, 3.0f};
  const std::vector<uint32_t> words = {1};
  const auto result =
      Sample(row, {.temperature = 0, .num_top_logprobs = 1, .allowed_tokens = {words}});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->token, 0);
  EXPECT_EQ(result->logprob, Score(row, 0, 0)->logprob);
  EXPECT_EQ(result->rank, 3);
  EXPECT_EQ(result->top[0].token, 2);
}

using Bias = std::vector<std::pair<int32_t, float>>;

TEST(SamplerTest, ABiasIsAddedToTheLogitOfItsTokenAlone) {
  const std::vector<float> row = {1.0f, 3.0f, 2.0f, 2.5f};
  const auto greedy = [&](const Bias& bias) {
    return Sample(row, {.temperature = 0, .logit_bias = bias})->token;
  };
  EXPECT_EQ(greedy({}), 1);
  EXPECT_EQ(greedy({{1, -0.25f}}), 1);
  EXPECT_EQ(greedy({{1, -0.75f}}), 3);
  EXPECT_EQ(greedy({{1, -0.5f}}), 1) << "of equals the lower id";
  EXPECT_EQ(greedy({{1, -100}, {3, -100}}), 2);
  EXPECT_EQ(greedy({{0, 100}}), 0);
  EXPECT_EQ(greedy({{0, 100}, {2, 100}}), 2) << "what had more keeps more";
  EXPECT_EQ(greedy({{-1, 100}, {4, 100}, {1 << 30, 100}}), 1) << "nobody's";
}

// Sampled tokens are those of a row that had these logits from the beginning.
TEST(SamplerTest, ABiasComesBeforeTemperatureAndCuts) {
  std::mt19937_64 random(kSeed);
  const std::vector<float> row = RandomRow(random, 5000, 2.0f);
  const Bias bias = {{3, 7.5f}, {17, -100.0f}, {4500, 9.25f}};
  std::vector<float> changed = row;
  for (const auto& [id, added] : bias) changed[id] += added;
  bool drew_one = false;
  for (uint64_t position = 0; position < 200; ++position) {
    SampleQuery args = {.temperature = 1.5f,
                        .top_k = position % 2 == 0 ? 40 : 0,
                        .top_p = position % 3 == 0 ? 0.9f : 1.0f,
                        .seed = kSeed,
                        .position = position};
    const int32_t want = Sample(changed, args)->token;
    args.logit_bias = bias;
    EXPECT_EQ(Sample(row, args)->token, want) << position;
    drew_one |= want == 3 || want == 4500;
  }
  EXPECT_TRUE(drew_one);
}

TEST(SamplerTest, AMaskedTokenStaysMaskedWhateverItsBias) {
  const std::vector<float> row = {1.0f, 2.0f, 3.0f};
  const Bias bias = {{1, 100.0f}, {2, 50.0f}};
  const std::vector<int32_t> masked = {1};
  for (const float temperature : {0.0f, 1.0f}) {
    EXPECT_EQ(Sample(row, {.temperature = temperature, .logit_bias = bias, .masked_tokens = masked})
                  ->token,
              2);
  }
}

TEST(SamplerTest, ABiasIsForgottenAfterItsDraw) {
  const std::vector<float> row = {1.0f, 2.0f, 3.0f};
  const Bias bias = {{0, 100.0f}};
  const std::vector<int32_t> masked = {2};
  EXPECT_EQ(Sample(row, {.temperature = 0, .logit_bias = bias})->token, 0);
  EXPECT_EQ(Sample(row, {.temperature = 0, .masked_tokens = masked})->token, 1);
  EXPECT_EQ(Sample(row, {.temperature = 0})->token, 2);
}

TEST(SamplerTest, LogprobsAreOfTheRawLogits) {
  std::mt19937_64 random(kSeed);
  const std::vector<float> row = RandomRow(random, 5000, 2.0f);
  const std::vector<int32_t> masked = {
      static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin())};
  const Bias bias = {{1, 3.0f}, {masked[0] == 2 ? 4 : 2, -5.0f}};
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit));
  for (uint64_t position = 0; position < 50; ++position) {
    const auto result = Sample(row, {.temperature = 0.3f,
                                     .top_k = 20,
                                     .top_p = 0.9f,
                                     .seed = kSeed,
                                     .position = position,
                                     .num_top_logprobs = 5,
                                     .logit_bias = bias,
                                     .masked_tokens = masked});
    ASSERT_TRUE(result.ok());
    EXPECT_NE(result->token, masked[0]);
    EXPECT_NEAR(result->logprob, row[result->token] - std::log(sum), 1e-5);
    ASSERT_EQ(result->top.size(), 5u);
    EXPECT_EQ(result->top[0].token, masked[0]);
  }
}

TEST(SamplerTest, GivenTokenScoresWithTheBitsOfADrawnOne) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 50; ++round) {
    const std::vector<float> row = RandomRow(random, 4097 + round, 3.0f);
    const auto drawn = Sample(
        row, {.seed = kSeed, .position = static_cast<uint64_t>(round), .num_top_logprobs = 20});
    ASSERT_TRUE(drawn.ok());
    const auto scored = Score(row, drawn->token, 20);
    ASSERT_TRUE(scored.ok());
    EXPECT_EQ(std::bit_cast<uint32_t>(scored->logprob), std::bit_cast<uint32_t>(drawn->logprob));
    EXPECT_EQ(scored->rank, drawn->rank);
    EXPECT_EQ(scored->top, drawn->top);
  }
}

TEST(SamplerTest, TopListIsBestFirstWithLowerIdsAmongEquals) {
  const std::vector<float> row = {1.0f, 3.0f, 2.0f, 3.0f, 1.0f};
  const auto result = Score(row, 4, 4);
  ASSERT_TRUE(result.ok());
  std::vector<int32_t> ids;
  for (const RankedToken& token : result->top) ids.push_back(token.token);
  EXPECT_THAT(ids, ElementsAre(1, 3, 2, 0));
  EXPECT_EQ(result->rank, 5);
  EXPECT_EQ(result->top[0].logprob, result->top[1].logprob);
  EXPECT_EQ(Score(row, 3, 0)->rank, 2);
  EXPECT_TRUE(Score(row, 3, 0)->top.empty());
  EXPECT_EQ(Score(row, 0, 1000)->top.size(), 5u);
}

TEST(SamplerTest, WithoutLogprobsNoneAreReported) {
  const auto result = Sample(std::vector<float>{1.0f, 2.0f}, {.temperature = 0});
  EXPECT_EQ(result->token, 1);
  EXPECT_EQ(result->logprob, 0.0f);
  EXPECT_EQ(result->rank, 0);
  EXPECT_TRUE(result->top.empty());
}

TEST(SamplerTest, TheTokensOwnLogprobNeedsNoTopList) {
  const std::vector<float> row = {1.0f, 2.0f};
  const auto result = Sample(row, {.temperature = 0, .num_top_logprobs = 0});
  EXPECT_EQ(result->logprob, Score(row, 1, 0)->logprob);
  EXPECT_EQ(result->rank, 1);
  EXPECT_TRUE(result->top.empty());
}

TEST(SamplerTest, SameResultWhateverCameBeforeAndOnEveryThread) {
  std::mt19937_64 random(kSeed);
  std::vector<std::vector<float>> rows;
  std::vector<SampleQuery> args;
  for (int i = 0; i < 24; ++i) {
    rows.push_back(RandomRow(random, static_cast<int>(100 + random() % 20000), 2.0f));
    args.push_back({.temperature = i % 5 == 0 ? 0.0f : 0.8f,
                    .top_k = i % 3 == 0 ? 40 : 0,
                    .top_p = i % 2 == 0 ? 0.9f : 1.0f,
                    .seed = random(),
                    .position = static_cast<uint64_t>(i),
                    .num_top_logprobs = i % 7 - 1});
  }
  std::vector<SampleResult> forward;
  for (size_t i = 0; i < rows.size(); ++i) forward.push_back(Sample(rows[i], args[i]).value());
  const auto check_backwards = [&] {
    for (size_t i = rows.size(); i-- > 0;) {
      const SampleResult again = Sample(rows[i], args[i]).value();
      EXPECT_EQ(again.token, forward[i].token);
      EXPECT_EQ(std::bit_cast<uint32_t>(again.logprob),
                std::bit_cast<uint32_t>(forward[i].logprob));
      EXPECT_EQ(again.top, forward[i].top);
    }
  };
  check_backwards();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(check_backwards);
  for (std::thread& thread : threads) thread.join();
}

TEST(SamplerTest, SeedChoiceAndPositionEachChangeTheDraw) {
  const std::vector<float> row(30000, 0.0f);
  const SampleQuery args = {.seed = kSeed, .choice = 1, .position = 100};
  const int32_t token = Sample(row, args)->token;
  EXPECT_EQ(Sample(row, args)->token, token);
  SampleQuery other = args;
  other.seed = kSeed + 1;
  EXPECT_NE(Sample(row, other)->token, token);
  other = args;
  other.choice = 2;
  EXPECT_NE(Sample(row, other)->token, token);
  other = args;
  other.position = 101;
  EXPECT_NE(Sample(row, other)->token, token);
}

TEST(SamplerTest, ExtremeLogitsAndTemperaturesAreFine) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  const std::vector<float> row = {-kHuge, kHuge, 0.0f, kHuge};
  for (const float temperature : {0.0f, 1e-45f, 1e-30f, 1.0f, 2.0f}) {
    const auto result =
        Sample(row, {.temperature = temperature, .top_p = 0.4f, .num_top_logprobs = 4});
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->token, 1);
    EXPECT_NEAR(result->logprob, -0.6931472f, 1e-6);
  }
}

TEST(SamplerTest, LogitThatIsNoNumberIsInternalAndNamesItsId) {
  std::vector<float> row(300, 0.0f);
  row[257] = std::nanf("");
  const auto drawn = Sample(row, {});
  EXPECT_TRUE(absl::IsInternal(drawn.status()));
  EXPECT_THAT(std::string(drawn.status().message()), HasSubstr("id 257"));
  row[257] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(absl::IsInternal(Sample(row, {.temperature = 0}).status()));
  EXPECT_TRUE(absl::IsInternal(Score(row, 0, 0).status()));
}

TEST(SamplerTest, ArgumentsOutOfRangeAreRefused) {
  const std::vector<float> row = {0.0f, 1.0f};
  const float nan = std::nanf("");
  for (const SampleQuery& args :
       {SampleQuery{.temperature = -1}, SampleQuery{.temperature = nan},
        SampleQuery{.temperature = std::numeric_limits<float>::infinity()},
        SampleQuery{.top_k = -1}, SampleQuery{.top_p = 0}, SampleQuery{.top_p = 1.5f},
        SampleQuery{.top_p = nan}, SampleQuery{.num_top_logprobs = -2}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Sample(row, args).status()));
  }
  const std::vector<int32_t> all = {0, 1};
  EXPECT_TRUE(absl::IsInvalidArgument(Sample(row, {.masked_tokens = all}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Sample({}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Score(row, 2, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Score(row, -1, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Score(row, 0, -1).status()));
  const std::vector<float> huge(kMaxVocabulary + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(Sample(huge, {}).status()));
}

TEST(SamplerTest, LargestVocabularyIsDrawnFromWithoutOverflow) {
  // All weights are the highest there are.
  const std::vector<float> row(kMaxVocabulary, 1.0f);
  for (const float top_p : {1.0f, 0.999f}) {
    for (uint64_t position = 0; position < 4; ++position) {
      const SampleQuery args = {.top_p = top_p, .seed = kSeed, .position = position};
      EXPECT_EQ(Sample(row, args)->token, SlowSample(row, args));
    }
  }
}

TEST(SamplerTest, DrawsOfOneRowDoNotChangeEachOther) {
  std::mt19937_64 random(kSeed);
  const std::vector<float> logits = RandomRow(random, 9000, 2.0f);
  const auto row = ScoredRow::Make(logits);
  ASSERT_TRUE(row.ok());
  const std::vector<int32_t> masked = {1, 2, 3};
  for (uint32_t choice = 0; choice < 8; ++choice) {
    SampleQuery args = {.seed = kSeed, .choice = choice};
    args.num_top_logprobs = static_cast<int32_t>(choice % 4) - 1;
    if (choice % 3 == 1) args.masked_tokens = masked;
    const auto shared = Sample(*row, args);
    const auto alone = Sample(logits, args);
    EXPECT_EQ(shared->token, alone->token);
    EXPECT_EQ(std::bit_cast<uint32_t>(shared->logprob), std::bit_cast<uint32_t>(alone->logprob));
    EXPECT_EQ(shared->top, alone->top);
  }
}

}  // namespace
}  // namespace tandem
