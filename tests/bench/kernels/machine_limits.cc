#include "tests/bench/kernels/machine_limits.h"

#include <immintrin.h>

namespace tandem {
namespace {

// Enough independent sums to hide the latency of either instruction.
constexpr int kSums = 24;

template <typename Step>
void Repeat(int64_t iterations, Step step) {
  __m512 sums[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_setzero_ps();
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sums[i] = step(sums[i]);
      // The compiler must not see that the sums are independent of what is read.
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) __asm__ volatile("" : "+v"(sums[i]));
  }
}

}  // namespace

double RunVdpbf16ps(int64_t iterations) {
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3F003F00);
  Repeat(
      iterations, [&](__m512 sum)
                      __attribute__((always_inline)) { return _mm512_dpbf16_ps(sum, x, x); });
  return static_cast<double>(iterations) * kSums * 64;
}

double RunFma(int64_t iterations) {
  const __m512 x = _mm512_set1_ps(0.5f);
  Repeat(
      iterations, [&](__m512 sum)
                      __attribute__((always_inline)) { return _mm512_fmadd_ps(x, x, sum); });
  return static_cast<double>(iterations) * kSums * 32;
}

uint64_t ReadMemory(const void* data, size_t size_bytes) {
  // Four streams: one alone does not keep enough lines in flight.
  constexpr int kStreams = 4;
  const char* from = static_cast<const char*>(data);
  const size_t stream_bytes = size_bytes / kStreams;
  __m512i sums[kStreams] = {};
  for (size_t i = 0; i + 128 <= stream_bytes; i += 128) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const char* line = from + s * stream_bytes + i;
      _mm_prefetch(line + 1024, _MM_HINT_T0);
      _mm_prefetch(line + 1088, _MM_HINT_T0);
      sums[s] = _mm512_add_epi64(sums[s], _mm512_loadu_si512(line));
      sums[s] = _mm512_add_epi64(sums[s], _mm512_loadu_si512(line + 64));
    }
  }
  uint64_t lanes[8];
  _mm512_storeu_si512(lanes, _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]),
                                              _mm512_add_epi64(sums[2], sums[3])));
  uint64_t total = 0;
  for (const uint64_t lane : lanes) total += lane;
  return total;
}

}  // namespace tandem
