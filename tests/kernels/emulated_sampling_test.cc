// Sampling on a GPU without a GPU: every answer has the bits of kernels/sampling, in whatever order
// threads run, logits stay where they are, and no barrier could be left out.

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/emulated/block.h"
#include "kernels/cuda/emulated/cuda_runtime.h"
#include "kernels/sampling/sampler.h"
#include "tests/kernels/emulated_test.h"
#include "tests/kernels/kernel_test_support.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Results = std::vector<absl::StatusOr<SampleResult>>;

// Rows with their queries, and what these point at.
struct Case {
  int64_t num_rows = 1;
  int64_t vocabulary = 1;
  std::vector<float> logits;
  std::vector<SampleQuery> queries;
  std::deque<std::vector<std::pair<int32_t, float>>> biases;
  std::deque<std::vector<int32_t>> masked;
  std::deque<std::vector<uint32_t>> words;

  HostSampleArgs Args(Results* results, int32_t* drawn = nullptr) const {
    return {.logits = logits.data(),
            .drawn_tokens = drawn,
            .num_rows = num_rows,
            .vocabulary = vocabulary,
            .queries = queries.data(),
            .results = results->data(),
            .count = std::ssize(queries)};
  }
};

Results OnHost(const Case& c) {
  Results results(c.queries.size());
  SampleRows(c.Args(&results), 0, std::ssize(c.queries));
  return results;
}

uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }

std::string Text(const absl::StatusOr<SampleResult>& result) {
  if (!result.ok()) return result.status().ToString();
  char text[64];
  std::snprintf(text, sizeof(text), "%d %08x %d", result->token, BitsOf(result->logprob),
                result->rank);
  std::string all = text;
  for (const RankedToken& ranked : result->top) {
    std::snprintf(text, sizeof(text), ", %d %08x", ranked.token, BitsOf(ranked.logprob));
    all += text;
  }
  return all;
}

std::string Text(const SampleQuery& query) {
  char text[256];
  std::snprintf(
      text, sizeof(text),
      "row %d, given %d, temperature %g, top_k %d, top_p %.9g, %d top logprobs, %d biased, "
      "%d masked, %d words",
      query.row, query.given, query.temperature, query.top_k, query.top_p, query.num_top_logprobs,
      static_cast<int>(query.logit_bias.size()), static_cast<int>(query.masked_tokens.size()),
      static_cast<int>(query.allowed_tokens.words.size()));
  return text;
}

class EmulatedSamplingTest : public EmulatedTest {
 protected:
  void SetUp() override {
    EmulatedTest::SetUp();
    device_ = MakeDevice("cuda");
  }

  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(random_->Below(static_cast<uint64_t>(bound)));
  }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Below(std::ssize(values))];
  }

  // Steep and flat rows, with ties, with zeros of both signs, and a few that are no numbers.
  void AddLogits(Case* c) {
    c->logits.clear();
    for (int64_t row = 0; row < c->num_rows; ++row) {
      const float width = OneOf({0.0f, 0.01f, 2.0f, 10.0f, 300.0f, 1e38f});
      const float step = width * OneOf({0.0f, 0.0f, 0.05f, 0.5f});
      for (int64_t id = 0; id < c->vocabulary; ++id) {
        const auto uniform = [&] { return static_cast<float>(random_->Unit()) - 0.5f; };
        float logit = (uniform() + uniform() + uniform()) * width;
        if (step > 0) logit = std::round(logit / step) * step;
        c->logits.push_back(logit);
      }
      if (random_->Chance(0.1)) {
        const int64_t id = row * c->vocabulary + Below(c->vocabulary);
        c->logits[id] = OneOf({kInfinity, -kInfinity, std::nanf(""), -std::nanf("")});
        if (random_->Chance(0.3)) c->logits.back() = kInfinity;
      }
    }
  }

  void AddEdits(Case* c, SampleQuery* query) {
    const auto vocabulary = static_cast<int32_t>(c->vocabulary);
    const auto any_id = [&] { return static_cast<int32_t>(Below(vocabulary + 3)) - 1; };
    if (random_->Chance(0.3)) {
      auto& biases = c->biases.emplace_back();
      for (int64_t i = Below(random_->Chance(0.1) ? 700 : 20); i >= 0; --i) {
        biases.emplace_back(any_id(), static_cast<float>(Below(2001)) * 0.1f - 100.0f);
        if (random_->Chance(0.2)) biases.push_back(biases[Below(std::ssize(biases))]);
      }
      query->logit_bias = biases;
    }
    if (random_->Chance(0.3)) {
      auto& masked = c->masked.emplace_back();
      for (int64_t i = Below(20); i >= 0; --i) masked.push_back(any_id());
      if (!query->logit_bias.empty()) masked.push_back(query->logit_bias.front().first);
      masked.push_back(masked.front());
      if (random_->Chance(0.1)) {
        for (int32_t id = 0; id < vocabulary; ++id) masked.push_back(id);
      }
      query->masked_tokens = masked;
    }
    if (random_->Chance(0.3)) {
      auto& words = c->words.emplace_back(1 + Below(vocabulary / 32 + 2));
      const uint32_t sparse = random_->Chance(0.5) ? 0xFFFFFFFFu : 0x80000001u;
      for (uint32_t& word : words) word = static_cast<uint32_t>(random_->Next()) & sparse;
      query->allowed_tokens = {words};
    }
  }

  SampleQuery AnyQuery(Case* c, int32_t row) {
    SampleQuery query{.row = row,
                      .temperature = OneOf({0.0f, 1.0f, 0.7f, 0.01f, 5.0f, 1e-45f, 1e30f}),
                      .top_k = OneOf({0, 0, 1, 2, 50, 3000, 1'000'000}),
                      .top_p = OneOf({1.0f, 1.0f, 1e-12f, 0.3f, 0.95f, 0.9999999f}),
                      .seed = random_->Next(),
                      .choice = static_cast<uint32_t>(Below(3)),
                      .position = static_cast<uint64_t>(Below(1000)),
                      .num_top_logprobs = OneOf({-1, -1, 0, 1, 7, 40})};
    if (random_->Chance(0.2)) query.given = static_cast<int32_t>(Below(c->vocabulary + 1));
    if (random_->Chance(0.03)) query.temperature = -1.0f;
    if (random_->Chance(0.03)) query.top_p = 0.0f;
    if (random_->Chance(0.03)) query.num_top_logprobs = -2;
    AddEdits(c, &query);
    return query;
  }

  Case AnyCase() {
    Case c{.num_rows = 1 + Below(3),
           .vocabulary = OneOf<int64_t>({1, 2, 31, 257, 4095, 4096, 4097, 9000, 20'000})};
    AddLogits(&c);
    // Some rows have several, and some come back.
    for (int64_t i = 0; i < 3 * c.num_rows; ++i) {
      const auto row = static_cast<int32_t>(i < 2 * c.num_rows ? i / 2 : Below(c.num_rows));
      c.queries.push_back(AnyQuery(&c, row));
    }
    return c;
  }

  Results Run(const Case& c) {
    Results results(c.queries.size());
    std::vector<int32_t> drawn(c.queries.size() + 1, -7);
    const absl::Status status = device_->Sample(c.Args(&results, drawn.data()));
    EXPECT_TRUE(status.ok()) << status << ", " << emulated::TakeFault();
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(drawn[i], results[i].ok() ? results[i]->token : 0) << Text(c.queries[i]);
    }
    EXPECT_EQ(drawn.back(), -7);
    return results;
  }

  void ExpectTheHosts(const Case& c) {
    const Results expected = OnHost(c);
    const Results actual = Run(c);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(Text(actual[i]), Text(expected[i]))
          << Text(c.queries[i]) << ", vocabulary " << c.vocabulary;
    }
    ASSERT_EQ(emulated::TakeFault(), "");
  }

  std::unique_ptr<TestDevice> device_;
};

TEST_F(EmulatedSamplingTest, EveryAnswerHasTheBitsOfTheHostInAnyOrderOfThreads) {
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    emulated::SetSeed(seed_ + static_cast<uint64_t>(i));
    ExpectTheHosts(AnyCase());
  }
}

// A real vocabulary, and the largest: more pieces than a block of a draw has warps,
// and more ids at a cut than shared memory takes.
TEST_F(EmulatedSamplingTest, LargeVocabulariesHaveTheBitsOfTheHost) {
  for (const int64_t vocabulary : {int64_t{128'256}, kMaxVocabulary}) {
    Case c{.num_rows = 2, .vocabulary = vocabulary};
    for (int64_t i = 0; i < vocabulary; ++i) {
      c.logits.push_back(std::log(static_cast<float>(random_->Unit()) + 1e-6f) * 2.5f);
    }
    c.logits.resize(static_cast<size_t>(2 * vocabulary), 1.0f);  // All are equal.
    for (const int32_t row : {0, 1}) {
      c.queries.push_back({.row = row, .temperature = 0, .num_top_logprobs = 3});
      c.queries.push_back({.row = row, .temperature = 0.9f, .seed = random_->Next()});
      c.queries.push_back({.row = row, .top_p = 0.95f, .seed = random_->Next()});
      c.queries.push_back({.row = row, .top_k = 40'000, .top_p = 0.5f, .seed = random_->Next()});
    }
    ExpectTheHosts(c);
  }
}

TEST_F(EmulatedSamplingTest, ACutIsWhereOneWeightMoreOrLessPutsIt) {
  // Weights of 2^44, 2^44 and 1, of 4, 2, 1 and 1 quarters, and of many that are equal.
  const std::vector<std::vector<float>> rows = {
      {0, 0, -30},
      {std::log(2.0f), 0, std::log(4.0f), 0},
      std::vector<float>(1000, -0.0f),
      {-kInfinity, 5, 5, 5, 4, 4, 4, 4, 0, -3.4e38f, 3},
  };
  for (const std::vector<float>& row : rows) {
    Case c{.vocabulary = std::ssize(row), .logits = row};
    if (row.front() == -kInfinity) c.logits[0] = 5;
    for (int i = 0; i < 16; ++i) {
      c.queries.push_back({.top_k = static_cast<int32_t>(Below(std::ssize(row) + 1)),
                           .top_p = OneOf({0.25f, 0.49f, 0.5f, 0.51f, 0.74f, 0.76f, 1.0f}),
                           .seed = random_->Next()});
    }
    ExpectTheHosts(c);
  }
}

// Kernels flush them; sampling does not.
TEST_F(EmulatedSamplingTest, DenormalsAreNumbersToo) {
  Case c{.vocabulary = 5000, .logits = std::vector<float>(5000, 0.0f)};
  c.logits[4711] = 1e-40f;
  c.logits[4712] = 2e-40f;
  for (const float temperature : {0.0f, 1e-45f, 1e-40f, 1e-38f}) {
    c.queries.push_back({.temperature = temperature, .num_top_logprobs = 3});
    c.queries.push_back({.temperature = temperature, .top_p = 0.4f, .seed = random_->Next()});
  }
  ExpectTheHosts(c);
  EXPECT_EQ(Run(c)[0]->token, 4712);
}

TEST_F(EmulatedSamplingTest, WhatIsDownloadedDoesNotGrowWithTheVocabulary) {
  for (const int64_t vocabulary : {100, 100'000}) {
    Case c{.num_rows = 4, .vocabulary = vocabulary};
    c.logits.assign(static_cast<size_t>(4 * vocabulary), 0.5f);
    c.queries = {{.row = 0, .temperature = 0},
                 {.row = 1, .top_p = 0.5f},
                 {.row = 2, .top_k = 10, .num_top_logprobs = 5},
                 {.row = 3, .given = 7, .num_top_logprobs = 5}};
    emulated::TakeDownloadedBytes();
    ExpectTheHosts(c);
    EXPECT_LE(emulated::TakeDownloadedBytes(), 4 * 32 + 10 * sizeof(RankedToken));
  }
}

// A step may be enqueued before anybody has waited for the one before.
TEST_F(EmulatedSamplingTest, ResultsAreThereOnceTheirOwnPointIsPassed) {
  Backend& backend = device_->backend();
  std::deque<Case> cases;  // Queries point at what cases have.
  for (int i = 0; i < 4; ++i) cases.push_back(AnyCase());
  std::vector<Results> results;
  for (const Case& c : cases) results.emplace_back(c.queries.size(), absl::UnknownError("none"));
  std::vector<DeviceEvent> events;
  for (size_t i = 0; i < cases.size(); ++i) {
    ASSERT_OK(backend.Sample(OfHost(cases[i].Args(&results[i]))));
    events.push_back(backend.Record());
  }
  const auto expect_done = [&](size_t count) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const Results expected = OnHost(cases[i]);
      for (size_t q = 0; q < expected.size(); ++q) {
        EXPECT_EQ(Text(results[i][q]), i < count ? Text(expected[q]) : "UNKNOWN: none") << i;
      }
    }
  };
  expect_done(0);
  ASSERT_OK(backend.Wait(events[0]));
  expect_done(1);
  ASSERT_OK(backend.Wait(events[2]));
  expect_done(3);
  ASSERT_OK(backend.Synchronize());
  expect_done(4);
  // The memory of calls that are over is used again.
  ExpectTheHosts(cases[0]);
}

TEST_F(EmulatedSamplingTest, EachBarrierAndEachWaitIsNeeded) {
  Case c{.num_rows = 2, .vocabulary = 2 * 4096 + 700};
  for (int64_t i = 0; i < c.num_rows * c.vocabulary; ++i) {
    c.logits.push_back(static_cast<float>(random_->Unit()) * 8.0f);
  }
  auto& biases = c.biases.emplace_back();
  auto& masked = c.masked.emplace_back();
  for (int32_t id = 5000; id < 5600; ++id) {
    biases.emplace_back(id, 1.5f);
    if (id % 3 == 0) masked.push_back(id);
  }
  const std::vector<uint32_t> words(200, 0xFFFF0FFFu);
  c.queries = {{.row = 0, .temperature = 0, .num_top_logprobs = 5},
               {.row = 1, .top_p = 0.9f},
               {.row = 1, .top_k = 3000, .top_p = 0.8f, .num_top_logprobs = 0},
               {.row = 1, .top_k = 50},
               {.row = 1,
                .temperature = 0.8f,
                .logit_bias = biases,
                .masked_tokens = masked,
                .allowed_tokens = {words}}};
  emulated::TakeSites();
  emulated::TakeLaunchWaits();
  emulated::WatchEarlyThreads(true);
  ExpectTheHosts(c);
  const Results expected = OnHost(c);
  const std::set<emulated::Site> launch_waits = emulated::TakeLaunchWaits();
  EXPECT_EQ(launch_waits.size(), 6u);  // Each kernel has one.
  std::set<emulated::Site> sites = launch_waits;
  for (const emulated::Site& site : emulated::TakeSites()) {
    if (site.file == "cuda_sampling.cu" || site.file == "sampling_pieces.h") sites.insert(site);
  }
  EXPECT_GE(sites.size(), 23u);
  for (const emulated::Site& site : sites) {
    emulated::LeaveOut(site);
    emulated::WatchEarlyThreads(launch_waits.contains(site));
    bool missed = false;
    for (uint64_t order = 0; order < 3 && !missed; ++order) {
      emulated::SetSeed(seed_ + order);
      const auto device = MakeDevice("cuda");  // What fails on a stream fails for ever.
      Results actual(c.queries.size());
      missed = !device->Sample(c.Args(&actual)).ok();
      for (size_t i = 0; i < actual.size(); ++i) missed |= Text(actual[i]) != Text(expected[i]);
    }
    EXPECT_TRUE(missed) << site.file << ":" << site.line << " was not missed";
    emulated::TakeFault();
    emulated::LeaveOut();
  }
}

// A call of the runtime fails once, wherever: that is an error, and what comes after is right.
TEST_F(EmulatedSamplingTest, AnyCallOfTheRuntimeMayFail) {
  Case c{.vocabulary = 3000};
  for (int64_t id = 0; id < 3000; ++id) c.logits.push_back(static_cast<float>(id % 7));
  c.queries = {{.top_k = 40, .top_p = 0.9f, .num_top_logprobs = 2}, {.temperature = 0}};
  int call = 0;
  for (bool failed = true; failed;) {
    const auto device = MakeDevice("cuda");
    Results abandoned(c.queries.size()), results(c.queries.size());
    emulated::FailCall(++call, cudaErrorInvalidDevice);
    failed = !device->Sample(c.Args(&abandoned)).ok();
    emulated::FailCall(0, cudaSuccess);
    const std::string before = Text(abandoned[0]);
    ASSERT_OK(device->Sample(c.Args(&results)));
    EXPECT_EQ(Text(abandoned[0]), before) << "nobody waits for it after call " << call;
    const Results expected = OnHost(c);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(Text(results[i]), Text(expected[i]));
  }
  EXPECT_GT(call, 8);
}

}  // namespace
}  // namespace tandem
