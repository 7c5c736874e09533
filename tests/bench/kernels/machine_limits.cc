#include "tests/bench/kernels/machine_limits.h"

#include <immintrin.h>

#include "kernels/cpu/amx_tiles.h"

namespace tandem {
namespace {

// `kSums` independent sums hide the latency of an instruction; `one` is a step of a sum. The
// compiler must not see that a sum is independent of what is read. (A macro, as a function for one
// instruction set does not take a lambda compiled for another.)
#define TANDEM_REPEAT(Register, kSums, constraint, one)                           \
  Register sums[kSums] = {};                                                      \
  for (int64_t n = 0; n < iterations; ++n) {                                      \
    _Pragma("GCC unroll 24") for (int i = 0; i < (kSums); ++i) { sums[i] = one; } \
    _Pragma("GCC unroll 24") for (int i = 0; i < (kSums); ++i) {                  \
      __asm__ volatile("" : constraint(sums[i]));                                 \
    }                                                                             \
  }                                                                               \
  return 2.0 * static_cast<double>(iterations) * (kSums) * sizeof(Register) / sizeof(float)

__attribute__((target("avx512f"))) double RunFma512(int64_t iterations) {
  const __m512 x = _mm512_set1_ps(0.5f);
  TANDEM_REPEAT(__m512, 24, "+v", _mm512_fmadd_ps(x, x, sums[i]));
}

__attribute__((target("avx2,fma"))) double RunFma256(int64_t iterations) {
  const __m256 x = _mm256_set1_ps(0.5f);
  TANDEM_REPEAT(__m256, 12, "+x", _mm256_fmadd_ps(x, x, sums[i]));
}

double RunMulAdd128(int64_t iterations) {
  __m128 x = _mm_set1_ps(0.5f);
  __asm__ volatile("" : "+x"(x));  // Or the product would be computed once.
  const auto product = [&x] {
    __m128 factor = x;
    __asm__ volatile("" : "+x"(factor));
    return factor * x;
  };
  TANDEM_REPEAT(__m128, 12, "+x", _mm_add_ps(sums[i], product()));
}

__attribute__((target("avx512f,avx512bf16"))) double RunBf16Dot512(int64_t iterations) {
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3F003F00);
  TANDEM_REPEAT(__m512, 24, "+v", _mm512_dpbf16_ps(sums[i], x, x));
}

__attribute__((target("avx512f,avx512vnni"))) double RunInt8Dot512(int64_t iterations) {
  const __m512i x = _mm512_set1_epi8(1);
  TANDEM_REPEAT(__m512i, 24, "+v", _mm512_dpbusd_epi32(sums[i], x, x));
}

__attribute__((target("avx512f,avx512bw"))) double RunInt16Pairs512(int64_t iterations) {
  const __m512i x = _mm512_set1_epi16(1);
  TANDEM_REPEAT(__m512i, 12, "+v", _mm512_add_epi32(sums[i], _mm512_madd_epi16(sums[i], x)));
}

__attribute__((target("avx2"))) double RunInt16Pairs256(int64_t iterations) {
  const __m256i x = _mm256_set1_epi16(1);
  TANDEM_REPEAT(__m256i, 12, "+x", _mm256_add_epi32(sums[i], _mm256_madd_epi16(sums[i], x)));
}

__attribute__((target("avx2,avxvnni"))) double RunInt8Dot256(int64_t iterations) {
  const __m256i x = _mm256_set1_epi8(1);
  TANDEM_REPEAT(__m256i, 12, "+x", _mm256_dpbusd_avx_epi32(sums[i], x, x));
}

// `multiply` adds to four tiles of sums; a unit is `per_unit` inputs.
template <typename Multiply>
double RunTiles(int per_unit, int64_t iterations, const Multiply& multiply) {
  TileConfig config;
  for (int tile = 0; tile < kNumTiles; ++tile) {
    config.rows[tile] = kAmxTileRows;
    config.row_bytes[tile] = kAmxTileRowBytes;
  }
  NativeTiles tiles;
  tiles.Configure(config);
  for (int64_t n = 0; n < iterations; ++n) multiply(&tiles);
  const double products = 4.0 * kAmxTileRows * kAmxTileRows * (kAmxTileRowBytes / 4) * per_unit;
  return 2.0 * products * static_cast<double>(iterations);
}

}  // namespace

double RunInt8Tiles(int64_t iterations) {
  return RunTiles(4, iterations, [](NativeTiles* tiles) {
    tiles->MultiplyInt8<0, 4, 6>();
    tiles->MultiplyInt8<1, 4, 7>();
    tiles->MultiplyInt8<2, 5, 6>();
    tiles->MultiplyInt8<3, 5, 7>();
  });
}

double RunBf16Tiles(int64_t iterations) {
  return RunTiles(2, iterations, [](NativeTiles* tiles) {
    tiles->MultiplyBf16<0, 4, 6>();
    tiles->MultiplyBf16<1, 4, 7>();
    tiles->MultiplyBf16<2, 5, 6>();
    tiles->MultiplyBf16<3, 5, 7>();
  });
}

double RunInt8Products(std::string_view isa, int64_t iterations) {
  if (isa == "generic") return RunMultiplyAdds(isa, iterations);
  if (isa == "avx2vnni") return 4 * RunInt8Dot256(iterations);
  if (isa == "avx2") return 2 * RunInt16Pairs256(iterations);
  if (isa == "avx512") return 2 * RunInt16Pairs512(iterations);
  return 4 * RunInt8Dot512(iterations);
}

double RunMultiplyAdds(std::string_view isa, int64_t iterations) {
  if (isa == "generic") return RunMulAdd128(iterations);
  return isa.starts_with("avx2") ? RunFma256(iterations) : RunFma512(iterations);
}

double RunVdpbf16ps(int64_t iterations) { return 2 * RunBf16Dot512(iterations); }

// Four streams: one alone does not keep enough lines in flight.
uint64_t ReadMemory(const void* data, size_t size_bytes) {
  constexpr int kStreams = 4;
  const char* from = static_cast<const char*>(data);
  const size_t stream_bytes = size_bytes / kStreams;
  __m128i sums[kStreams] = {};
  for (size_t i = 0; i + 128 <= stream_bytes; i += 128) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const char* line = from + s * stream_bytes + i;
      _mm_prefetch(line + 1024, _MM_HINT_T0);
      _mm_prefetch(line + 1088, _MM_HINT_T0);
#pragma GCC unroll 8
      for (int part = 0; part < 8; ++part) {
        sums[s] = _mm_add_epi64(sums[s],
                                _mm_load_si128(reinterpret_cast<const __m128i*>(line + 16 * part)));
      }
    }
  }
  uint64_t lanes[2];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), (sums[0] + sums[1]) + (sums[2] + sums[3]));
  return lanes[0] + lanes[1];
}

}  // namespace tandem
