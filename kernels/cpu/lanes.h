// Sixteen lanes of float, written once and compiled for each instruction set: GCC's vector type of
// 64 bytes is one register with AVX-512 and four with SSE2. Every operation is a plain IEEE one per
// lane, so all instruction sets give the same bits.
//
// Only for files compiled for one instruction set. Everything is inlined: a function that the
// linker could share between such files would bring the wrong instructions to an older machine.

#ifndef TANDEM_KERNELS_CPU_LANES_H_
#define TANDEM_KERNELS_CPU_LANES_H_

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "kernels/api/dtype.h"
#include "kernels/api/vector_math.h"

#define TANDEM_LANES [[gnu::always_inline]] static inline

namespace tandem {

using F32x16 = float __attribute__((vector_size(64)));
using U32x16 = uint32_t __attribute__((vector_size(64)));
using I32x16 = int32_t __attribute__((vector_size(64)));
using U16x16 = uint16_t __attribute__((vector_size(32)));

TANDEM_LANES F32x16 Splat(float x) {
  return F32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

TANDEM_LANES F32x16 LoadF32(const float* from) {
  F32x16 x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

TANDEM_LANES void StoreF32(float* to, F32x16 x) { std::memcpy(to, &x, sizeof(x)); }

// The first `count` lanes, 1 to 15; zeros after them.
TANDEM_LANES F32x16 LoadF32Tail(const float* from, int count) {
#if defined(__AVX512F__)
  return (F32x16)_mm512_maskz_loadu_ps((1u << count) - 1, from);
#else
  F32x16 x = {};
  std::memcpy(&x, from, sizeof(float) * count);
  return x;
#endif
}

TANDEM_LANES void StoreF32Tail(float* to, F32x16 x, int count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, (1u << count) - 1, (__m512)x);
#else
  std::memcpy(to, &x, sizeof(float) * count);
#endif
}

TANDEM_LANES F32x16 WidenBf16(U16x16 x) {
  return (F32x16)(__builtin_convertvector(x, U32x16) << 16);
}

// ToBfloat16 of every lane.
TANDEM_LANES U16x16 NarrowBf16(F32x16 x) {
  const U32x16 bits = (U32x16)x;
  const U32x16 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const U32x16 quiet = (bits >> 16) | 0x40u;
  const U32x16 is_nan = (U32x16)((bits & 0x7FFFFFFFu) > 0x7F800000u);
  return __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), U16x16);
}

// The same, of lanes that are no denormals (the instruction would flush them).
TANDEM_LANES U16x16 NarrowNormalBf16(F32x16 x) {
#if defined(__AVX512BF16__)
  return (U16x16)_mm512_cvtneps_pbh((__m512)x);
#else
  return NarrowBf16(x);
#endif
}

// `index` counts elements; `count` lanes, 1 to 16.
TANDEM_LANES F32x16 LoadLanes(DType dtype, const void* array, int64_t index, int count) {
  if (dtype == DType::kF32) {
    const float* from = static_cast<const float*>(array) + index;
    return count == 16 ? LoadF32(from) : LoadF32Tail(from, count);
  }
  const uint16_t* from = static_cast<const uint16_t*>(array) + index;
  U16x16 x = {};
  if (count == 16) {
    std::memcpy(&x, from, sizeof(x));
  } else {
#if defined(__AVX512F__)
    x = (U16x16)_mm256_maskz_loadu_epi16((1u << count) - 1, from);
#else
    std::memcpy(&x, from, sizeof(uint16_t) * count);
#endif
  }
  return WidenBf16(x);
}

TANDEM_LANES void StoreLanes(DType dtype, void* array, int64_t index, F32x16 x, int count) {
  if (dtype == DType::kF32) {
    float* to = static_cast<float*>(array) + index;
    if (count == 16) {
      StoreF32(to, x);
    } else {
      StoreF32Tail(to, x, count);
    }
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(array) + index;
  const U16x16 narrow = NarrowBf16(x);
  if (count == 16) {
    std::memcpy(to, &narrow, sizeof(narrow));
    return;
  }
#if defined(__AVX512F__)
  _mm256_mask_storeu_epi16(to, (1u << count) - 1, (__m256i)narrow);
#else
  std::memcpy(to, &narrow, sizeof(uint16_t) * count);
#endif
}

TANDEM_LANES F32x16 Select(I32x16 condition, F32x16 yes, F32x16 no) { return condition ? yes : no; }

// a > b ? a : b, so a NaN in `a` is passed over.
TANDEM_LANES F32x16 MaxOf(F32x16 a, F32x16 b) { return Select(a > b, a, b); }

#if defined(__AVX512F__)

// SumLanes.
TANDEM_LANES float SumOf(F32x16 x) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Of lanes without a NaN.
TANDEM_LANES float MaxOfLanes(F32x16 x) {
  const __m256 eight =
      _mm256_max_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#else

// SumLanes.
TANDEM_LANES float SumOf(F32x16 x) {
  float lanes[kLanes];
  StoreF32(lanes, x);
  return SumLanes(lanes);
}

// Of lanes without a NaN.
TANDEM_LANES float MaxOfLanes(F32x16 x) {
  float lanes[kLanes];
  StoreF32(lanes, x);
  float max = lanes[0];
  for (int i = 1; i < kLanes; ++i) max = lanes[i] > max ? lanes[i] : max;
  return max;
}

#endif

// Exp of vector_math.h in every lane, bit by bit.
TANDEM_LANES F32x16 ExpOf(F32x16 x) {
  const F32x16 shifted = x * kLog2E + kRoundFloat;
  const F32x16 n = shifted - kRoundFloat;
  const F32x16 r = (x - n * kLn2High) - n * kLn2Low;
  const F32x16 q = kExp0 + r * (kExp1 + r * (kExp2 + r * (kExp3 + r * kExp4)));
  const F32x16 p = 1.0f + (r + (r * r) * q);
  const F32x16 scale = (F32x16)(((U32x16)shifted + 127u) << 23);
  const F32x16 y = Select(x < kExpLowest, F32x16{}, p * scale);
  return Select(x > kExpHighest, Splat(__builtin_inff()), y);
}

TANDEM_LANES F32x16 SiluOf(F32x16 x) { return x / (1.0f + ExpOf(-x)); }

TANDEM_LANES F32x16 GeluTanhOf(F32x16 x) {
  const F32x16 cube = (x * x) * x;
  const F32x16 y = x + 0.044715f * cube;
  return x / (1.0f + ExpOf(-0x1.988454p+0f * y));
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_LANES_H_
