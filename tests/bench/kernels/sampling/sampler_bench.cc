// Time a row takes. Every case is checked against its own second run before it is timed.

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/sampling/sampler.h"
#include "runtime/base/check.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

absl::StatusOr<SampleResult> Sample(std::span<const float> logits, const SampleQuery& args) {
  TANDEM_ASSIGN_OR_RETURN(const ScoredRow row, ScoredRow::Make(logits));
  return Sample(row, args);
}

std::vector<float> MakeRow(int64_t size) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0.0f, 2.5f);
  std::vector<float> row(size);
  for (float& logit : row) logit = normal(random);
  return row;
}

void Run(benchmark::State& state, SampleQuery args) {
  const std::vector<float> row = MakeRow(state.range(0));
  TANDEM_CHECK(Sample(row, args)->token == Sample(row, args)->token);
  for (auto _ : state) {
    benchmark::DoNotOptimize(Sample(row, args));
    ++args.position;
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * sizeof(float));
}

void Greedy(benchmark::State& state) { Run(state, {.temperature = 0}); }
void Plain(benchmark::State& state) { Run(state, {.temperature = 0.8f}); }
void TopK(benchmark::State& state) { Run(state, {.temperature = 0.8f, .top_k = 50}); }
void TopP(benchmark::State& state) { Run(state, {.temperature = 0.8f, .top_p = 0.9f}); }
void TopKTopP(benchmark::State& state) {
  Run(state, {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f});
}
void GreedyLogprobs(benchmark::State& state) {
  Run(state, {.temperature = 0, .num_top_logprobs = 20});
}

BENCHMARK(Greedy)->Arg(4096)->Arg(128256);
BENCHMARK(Plain)->Arg(4096)->Arg(128256);
BENCHMARK(TopK)->Arg(4096)->Arg(128256);
BENCHMARK(TopP)->Arg(4096)->Arg(128256);
BENCHMARK(TopKTopP)->Arg(4096)->Arg(128256);
BENCHMARK(GreedyLogprobs)->Arg(4096)->Arg(128256);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
