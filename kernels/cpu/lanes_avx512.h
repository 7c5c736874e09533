// Sixteen lanes in one register of AVX-512: GCC's own vector type. See lanes.h.

#ifndef TANDEM_KERNELS_CPU_LANES_AVX512_H_
#define TANDEM_KERNELS_CPU_LANES_AVX512_H_

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace tandem {
namespace {

using F32x16 = float __attribute__((vector_size(64)));
using U32x16 = uint32_t __attribute__((vector_size(64)));
using I32x16 = int32_t __attribute__((vector_size(64)));
using U16x16 = uint16_t __attribute__((vector_size(32)));

TANDEM_LANES U32x16 BitsOf(F32x16 x) { return (U32x16)x; }
TANDEM_LANES F32x16 FloatsOf(U32x16 x) { return (F32x16)x; }
TANDEM_LANES I32x16 SignedOf(U32x16 x) { return (I32x16)x; }
TANDEM_LANES U32x16 UnsignedOf(I32x16 x) { return (U32x16)x; }

TANDEM_LANES F32x16 Splat(float x) { return (F32x16)_mm512_set1_ps(x); }
TANDEM_LANES U32x16 SplatU32(uint32_t x) {
  return (U32x16)_mm512_set1_epi32(static_cast<int32_t>(x));
}

TANDEM_LANES I32x16 LaneNumbers() {
  return I32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

TANDEM_LANES F32x16 LoadF32(const float* from) { return (F32x16)_mm512_loadu_ps(from); }
TANDEM_LANES void StoreF32(float* to, F32x16 x) { _mm512_storeu_ps(to, (__m512)x); }
TANDEM_LANES U32x16 LoadU32(const void* from) { return (U32x16)_mm512_loadu_si512(from); }

TANDEM_LANES U16x16 LoadU16(const uint16_t* from) {
  return (U16x16)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
TANDEM_LANES void StoreU16(uint16_t* to, U16x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)x);
}

// The first `count` lanes, 1 to 15; zeros after them.
TANDEM_LANES F32x16 LoadF32Tail(const float* from, int count) {
  return (F32x16)_mm512_maskz_loadu_ps((1u << count) - 1, from);
}
TANDEM_LANES void StoreF32Tail(float* to, F32x16 x, int count) {
  _mm512_mask_storeu_ps(to, (1u << count) - 1, (__m512)x);
}
TANDEM_LANES U16x16 LoadU16Tail(const uint16_t* from, int count) {
  return (U16x16)_mm256_maskz_loadu_epi16((1u << count) - 1, from);
}
TANDEM_LANES void StoreU16Tail(uint16_t* to, U16x16 x, int count) {
  _mm256_mask_storeu_epi16(to, (1u << count) - 1, (__m256i)x);
}

TANDEM_LANES U32x16 WidenU16(U16x16 x) { return (U32x16)_mm512_cvtepu16_epi32((__m256i)x); }
TANDEM_LANES U16x16 NarrowU16(U32x16 x) { return (U16x16)_mm512_cvtepi32_epi16((__m512i)x); }

TANDEM_LANES F32x16 Select(I32x16 condition, F32x16 yes, F32x16 no) { return condition ? yes : no; }
TANDEM_LANES F32x16 MaxOf(F32x16 a, F32x16 b) {
  return (F32x16)_mm512_max_ps((__m512)a, (__m512)b);
}
TANDEM_LANES F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) {
  return (F32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
TANDEM_LANES F32x16 ToFloats(I32x16 x) { return (F32x16)_mm512_cvtepi32_ps((__m512i)x); }

// Each lane is two numbers of 16 bits: acc + a.low · b.low + a.high · b.high.
TANDEM_LANES I32x16 AddPairProducts(I32x16 acc, U32x16 a, U32x16 b) {
  return acc + (I32x16)_mm512_madd_epi16((__m512i)a, (__m512i)b);
}
// Bytes 0 and 2, or 1 and 3, of each lane as two numbers of 16 bits.
TANDEM_LANES U32x16 EvenBytes(U32x16 x) { return x & 0x00FF00FFu; }
TANDEM_LANES U32x16 OddBytes(U32x16 x) { return (U32x16)_mm512_srli_epi16((__m512i)x, 8); }
TANDEM_LANES I32x16 LoadInt8(const int8_t* from) {
  return (I32x16)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#if defined(__AVX512VNNI__)
// Each lane is four bytes, those of `a` without a sign: acc + their four products.
TANDEM_LANES I32x16 AddQuadProducts(I32x16 acc, U32x16 a, U32x16 b) {
  return (I32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
}
#endif
// Each lane is four bytes, those of `a` without a sign and at most 127, of `b` from -127 on: acc +
// the sum of their products.
TANDEM_LANES I32x16 AddByteProducts(I32x16 acc, U32x16 a, U32x16 b) {
#if defined(__AVX512VNNI__)
  return AddQuadProducts(acc, a, b);
#else
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)a, (__m512i)b);
  return acc + (I32x16)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#endif
}
TANDEM_LANES U32x16 LoadU8(const uint8_t* from) {
  return (U32x16)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
TANDEM_LANES U16x16 WidenU8(const uint8_t* from) {
  return (U16x16)_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
// Numbers that fit.
TANDEM_LANES void StoreInt8(int8_t* to, I32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8((__m512i)x));
}

// Lane 2 · kPair in the first eight lanes, the next one in the others.
template <int kPair>
TANDEM_LANES F32x16 SplatPair(F32x16 x) {
  constexpr int kA = 2 * kPair, kB = kA + 1;
  const I32x16 from = {kA, kA, kA, kA, kA, kA, kA, kA, kB, kB, kB, kB, kB, kB, kB, kB};
  return (F32x16)_mm512_permutexvar_ps((__m512i)from, (__m512)x);
}
// Lanes 2i and 2i + 1 change places.
TANDEM_LANES F32x16 SwapPairs(F32x16 x) { return (F32x16)_mm512_permute_ps((__m512)x, 0xB1); }

TANDEM_LANES float SumOf(F32x16 x) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

TANDEM_LANES float MaxOfLanes(F32x16 x) {
  const __m256 eight =
      _mm256_max_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_LANES_AVX512_H_
