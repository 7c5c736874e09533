// Checksums of blocks, with a copy and without, in the cache and in memory; the copy alone is the
// machine's limit.

#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/random.h"

namespace tandem {
namespace {

constexpr size_t kBlockBytes = 240 << 10;

// Calls `use` with one block of each of two areas of range(0) MiB, in an order that nothing
// foresees.
template <typename Use>
void OfBlocks(benchmark::State& state, const Use& use) {
  const size_t num_blocks = (static_cast<size_t>(state.range(0)) << 20) / kBlockBytes;
  std::vector<uint8_t> from(num_blocks * kBlockBytes, 1), to(num_blocks * kBlockBytes, 2);
  Random random(/*seed=*/1);
  for (auto _ : state) {
    const size_t block = random.Below(num_blocks), place = random.Below(num_blocks);
    benchmark::DoNotOptimize(
        use(to.data() + place * kBlockBytes, from.data() + block * kBlockBytes));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kBlockBytes));
}

void BM_Copy(benchmark::State& state) {
  OfBlocks(state, [](void* to, const void* from) { return std::memcpy(to, from, kBlockBytes); });
}
void BM_Crc32c(benchmark::State& state) {
  OfBlocks(state, [](void*, const void* from) { return Crc32c(from, kBlockBytes); });
}
void BM_Crc32cCopy(benchmark::State& state) {
  OfBlocks(state, [](void* to, const void* from) {
    const uint32_t crc = Crc32cCopy(to, from, kBlockBytes);
    TANDEM_CHECK(std::memcmp(to, from, 64) == 0);
    return crc;
  });
}
BENCHMARK(BM_Copy)->ArgName("MiB")->Arg(1)->Arg(16)->Arg(512);
BENCHMARK(BM_Crc32c)->ArgName("MiB")->Arg(1)->Arg(16)->Arg(512);
BENCHMARK(BM_Crc32cCopy)->ArgName("MiB")->Arg(1)->Arg(16)->Arg(512);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
