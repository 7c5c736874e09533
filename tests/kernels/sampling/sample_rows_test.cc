// Backend::Sample is the sampler, row by row, whatever the batch, the threads and the device.

#include <cmath>
#include <deque>
#include <limits>

#include "kernels/api/sampling.h"
#include "kernels/sampling/sampler.h"
#include "tests/kernels/kernel_test_support.h"

namespace tandem {
namespace {

class SampleRowsTest : public DeviceTest {
 protected:
  struct Case {
    int64_t num_rows = 0, vocabulary = 0;
    std::vector<float> logits;
    std::vector<SampleQuery> queries;
    std::deque<std::vector<uint32_t>> masks;  // Some queries have one.
  };

  // Rows have none to five queries, and some come back to a row.
  Case RandomCase() {
    Case c{.num_rows = Between(1, 9), .vocabulary = Between(1, 9'000)};
    c.logits = Floats(c.num_rows * c.vocabulary, 3.0f);
    for (int64_t i = 0; i < 3 * c.num_rows; ++i) {
      const auto row =
          static_cast<int32_t>(i < 2 * c.num_rows ? i / 2 : Between(0, c.num_rows - 1));
      for (int64_t n = Between(0, 3); n > 0; --n) {
        SampleQuery query{.row = row,
                          .temperature = random_->Chance(0.3) ? 0.0f : 0.8f,
                          .top_k = random_->Chance(0.5) ? 40 : 0,
                          .top_p = random_->Chance(0.5) ? 0.9f : 1.0f,
                          .seed = random_->Next(),
                          .position = static_cast<uint64_t>(i),
                          .num_top_logprobs = static_cast<int32_t>(Between(-1, 3))};
        if (random_->Chance(0.3)) {
          query.given = static_cast<int32_t>(Between(0, c.vocabulary - 1));
          query.num_top_logprobs = 2;
        }
        if (random_->Chance(0.3)) {
          std::vector<uint32_t>& words =
              c.masks.emplace_back(static_cast<size_t>(c.vocabulary + 31) / 32);
          for (uint32_t& word : words) word = static_cast<uint32_t>(random_->Next());
          words.front() |= 1;
          query.allowed_tokens = {words};
        }
        c.queries.push_back(query);
      }
    }
    return c;
  }

  std::vector<absl::StatusOr<SampleResult>> Run(const Case& c) {
    std::vector<absl::StatusOr<SampleResult>> results(c.queries.size());
    std::vector<int32_t> drawn(c.queries.size(), -7);
    const absl::Status status = device_->Sample({.logits = c.logits.data(),
                                                 .drawn_tokens = drawn.data(),
                                                 .num_rows = c.num_rows,
                                                 .vocabulary = c.vocabulary,
                                                 .queries = c.queries.data(),
                                                 .results = results.data(),
                                                 .count = std::ssize(c.queries)});
    EXPECT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(drawn[i], results[i].ok() ? results[i]->token : 0) << i;
    }
    return results;
  }

  static absl::StatusOr<SampleResult> Alone(const Case& c, const SampleQuery& query) {
    const auto row = ScoredRow::Make(std::span(c.logits).subspan(
        static_cast<size_t>(query.row * c.vocabulary), static_cast<size_t>(c.vocabulary)));
    if (!row.ok()) return row.status();
    return query.given >= 0 ? Score(*row, query.given, query.num_top_logprobs)
                            : Sample(*row, query);
  }

  static void ExpectSame(const absl::StatusOr<SampleResult>& actual,
                         const absl::StatusOr<SampleResult>& expected) {
    ASSERT_EQ(actual.status(), expected.status());
    if (!actual.ok()) return;
    EXPECT_EQ(actual->token, expected->token);
    EXPECT_EQ(actual->logprob, expected->logprob);
    EXPECT_EQ(actual->rank, expected->rank);
    EXPECT_EQ(actual->top, expected->top);
  }
};

TEST_P(SampleRowsTest, AnswersAreThoseOfEachRowAlone) {
  for (int i = 0; i < 30; ++i) {
    if (i == 15) device_ = MakeDevice(GetParam(), /*num_threads=*/3);
    const Case c = RandomCase();
    const auto results = Run(c);
    for (size_t q = 0; q < results.size(); ++q) ExpectSame(results[q], Alone(c, c.queries[q]));
  }
}

// Kernels flush them; sampling does not, on any thread.
TEST_P(SampleRowsTest, DenormalsAreNumbersToo) {
  device_ = MakeDevice(GetParam(), /*num_threads=*/3);
  Case c{.num_rows = 64, .vocabulary = 16'384};
  c.logits.assign(static_cast<size_t>(c.num_rows * c.vocabulary), 0.0f);
  for (int32_t row = 0; row < 64; ++row) {
    c.logits[static_cast<size_t>(row * c.vocabulary + 7 + row)] = 1e-40f;
    c.queries.push_back({.row = row, .temperature = 0});
    c.queries.push_back({.row = row, .temperature = 1e-45f, .top_p = 0.4f});
  }
  const auto results = Run(c);
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_OK(results[i].status());
    EXPECT_EQ(results[i]->token, 7 + static_cast<int32_t>(i / 2)) << i;
  }
}

TEST_P(SampleRowsTest, AQueryFailsAlone) {
  Case c{.num_rows = 3, .vocabulary = 100};
  c.logits = Floats(300);
  c.logits[142] = std::nanf("");
  const std::vector<int32_t> all = [] {
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < 100; ++id) ids.push_back(id);
    return ids;
  }();
  c.queries = {{.row = 0},
               {.row = 1},
               {.row = 1, .given = 5, .num_top_logprobs = 0},
               {.row = 2, .temperature = -1.0f},
               {.row = 2, .given = 100, .num_top_logprobs = 0},
               {.row = 2, .masked_tokens = all},
               {.row = 2}};
  const auto results = Run(c);
  EXPECT_TRUE(results[0].ok()) << results[0].status();
  for (const size_t broken : {1, 2}) {
    EXPECT_TRUE(absl::IsInternal(results[broken].status()));
    EXPECT_NE(results[broken].status().message().find("id 42"), std::string::npos);
  }
  for (const size_t refused : {3, 4, 5}) {
    EXPECT_TRUE(absl::IsInvalidArgument(results[refused].status())) << refused;
  }
  EXPECT_TRUE(results[6].ok()) << results[6].status();
}

TEST_P(SampleRowsTest, NothingIsAskedOfNoRows) {
  EXPECT_TRUE(device_
                  ->Sample({.logits = nullptr,
                            .num_rows = 0,
                            .vocabulary = 10,
                            .queries = nullptr,
                            .results = nullptr,
                            .count = 0})
                  .ok());
  EXPECT_TRUE(absl::IsInvalidArgument(device_->Sample({.logits = nullptr,
                                                       .num_rows = 0,
                                                       .vocabulary = kMaxVocabulary + 1,
                                                       .queries = nullptr,
                                                       .results = nullptr,
                                                       .count = 0})));
}

INSTANTIATE_TEST_SUITE_P(Reference, SampleRowsTest, testing::Values("reference"));
INSTANTIATE_TEST_SUITE_P(Cpu, SampleRowsTest, testing::Values("cpu-generic"), DeviceName);
INSTANTIATE_TEST_SUITE_P(Fenced, SampleRowsTest, testing::Values("fenced"));
#if defined(TANDEM_CUDA)
INSTANTIATE_TEST_SUITE_P(Gpu, SampleRowsTest, testing::Values("cuda"), DeviceName);
#endif

}  // namespace
}  // namespace tandem
