// The name of one block of 16 tokens, in a chain.

#include <benchmark/benchmark.h>

#include <numeric>

#include "runtime/base/check.h"
#include "runtime/kv_cache/block_hash.h"

namespace tandem {
namespace {

void BM_HashBlock(benchmark::State& state) {
  std::vector<int32_t> tokens(kHashTokens);
  std::iota(tokens.begin(), tokens.end(), 1'000);
  const BlockHash root = HashRoot("model", "", "");
  BlockHash name = root;
  for (auto _ : state) name = HashBlock(name, tokens);
  TANDEM_CHECK(HashChain(root, tokens) == std::vector{HashBlock(root, tokens)});
  benchmark::DoNotOptimize(name);
}
BENCHMARK(BM_HashBlock);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
