// Sixteen lanes of float, written once and compiled for each instruction set: one register with
// AVX-512, two with AVX2, four with SSE2 and NEON. Every operation but MulAdd is a plain IEEE one
// per lane, so all instruction sets give the same bits; MulAdd is fused where there is FMA, and by
// NEON, whose files define TANDEM_NEON (docs/numerics.md).
//
//   types    F32x16, U32x16, I32x16 (also the result of a comparison), U16x16; + − · / & | ^ ~
//            << >> < > with each other or with one number for all lanes
//   memory   LoadF32, StoreF32, LoadU32, LoadU16, StoreU16, and ..Tail for the first few lanes
//   lanes    Splat, SplatU32, LaneNumbers, Select, MaxOf, MulAdd(a, b, c) = a · b + c,
//            SwapPairs, SplatPair
//   bits     BitsOf, FloatsOf, SignedOf, UnsignedOf, WidenU16, NarrowU16 (of what fits)
//   numbers  ToFloats, AddPairProducts, PairProducts, AddQuadProducts (by one instruction, where
//            there is one), AddByteProducts, EvenBytes, OddBytes, LoadU8, WidenU8, LoadInt8,
//            StoreInt8
//   one      SumOf (SumLanes), MaxOfLanes (of lanes without a NaN)
//
// Only for files compiled for one instruction set. Everything is inlined, and of this file alone: a
// function that the linker could share between such files would bring the wrong instructions to an
// older machine.

#ifndef TANDEM_KERNELS_CPU_LANES_H_
#define TANDEM_KERNELS_CPU_LANES_H_

#include <cstdint>
#include <cstring>

#include "kernels/api/dtype.h"
#include "kernels/support/int8.h"
#include "kernels/support/vector_math.h"

#define TANDEM_LANES [[gnu::always_inline]] static inline

// A test compiles the lanes of AVX2 for a machine that has AVX-512 (TANDEM_AVX2_LANES).
#if defined(__AVX512F__) && !defined(TANDEM_AVX2_LANES)
#define TANDEM_AVX512_LANES
#include "kernels/cpu/lanes_avx512.h"
#else
#include "kernels/cpu/lanes_parts.h"
#endif

namespace tandem {
namespace {

// AddPairProducts to nothing.
TANDEM_LANES I32x16 PairProducts(const U32x16& a, const U32x16& b) {
#if defined(__AVX2__) && !defined(TANDEM_AVX512_LANES)
  I32x16 y;
  TANDEM_FOR_PARTS(i) {
    y.part[i] = (I32x16::Register)_mm256_madd_epi16((__m256i)a.part[i], (__m256i)b.part[i]);
  }
  return y;
#else
  return AddPairProducts(I32x16{}, a, b);
#endif
}

TANDEM_LANES F32x16 WidenBf16(U16x16 x) { return FloatsOf(WidenU16(x) << 16); }

// ToFloat of halves, in every lane.
TANDEM_LANES F32x16 WidenHalf(U16x16 x) {
#if defined(TANDEM_AVX512_LANES)
  return (F32x16)_mm512_cvtph_ps((__m256i)x);
#elif defined(__F16C__)
  F32x16 y;
  TANDEM_FOR_PARTS(i) { y.part[i] = (F32x16::Register)_mm256_cvtph_ps((__m128i)x.part[i]); }
  return y;
#else
  const U32x16 bits = WidenU16(x);
  const U32x16 magnitude = bits & 0x7FFFu;
  const F32x16 small = ToFloats(SignedOf(magnitude)) * 0x1p-24f;
  const F32x16 number = FloatsOf((magnitude << 13) + 0x38000000u);
  const F32x16 none = FloatsOf((magnitude << 13) + 0x70000000u);
  const F32x16 y = Select(SignedOf(magnitude) < 0x400, small,
                          Select(SignedOf(magnitude) < 0x7C00, number, none));
  return FloatsOf(BitsOf(y) | (bits & 0x8000u) << 16);
#endif
}

// ToFloat of 8-bit floats (E4m3), in the lower bytes of the lanes. Shifted they are halves, 2^8 too
// low, that have denormals, too; the carry of a NaN's magnitude makes it one of halves.
TANDEM_LANES F32x16 WidenE4m3(U16x16 x) {
  const U16x16 magnitude = (x & 0x7F) << 7;
  const U16x16 of_nan = (magnitude + 0x80) & 0x4000;
  return WidenHalf(magnitude | of_nan | (x & 0x80) << 8) * 0x1p8f;
}

// ToBfloat16 of every lane.
TANDEM_LANES U16x16 NarrowBf16(F32x16 x) {
  const U32x16 bits = BitsOf(x);
  const U32x16 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const U32x16 quiet = (bits >> 16) | 0x40u;
  const U32x16 is_nan = UnsignedOf(SignedOf(bits & 0x7FFFFFFFu) > 0x7F800000);
  return NarrowU16((rounded & ~is_nan) | (quiet & is_nan));
}

// The same, of lanes that are no denormals (the instruction would flush them).
TANDEM_LANES U16x16 NarrowNormalBf16(F32x16 x) {
#if defined(__AVX512BF16__)
  return (U16x16)_mm512_cvtneps_pbh((__m512)x);
#else
  return NarrowBf16(x);
#endif
}

// Lanes that there are from element i on of `count`.
TANDEM_LANES int LanesAt(int64_t i, int64_t count) {
  return count - i < kLanes ? static_cast<int>(count - i) : kLanes;
}

// `index` counts elements; `count` lanes, 1 to 16.
TANDEM_LANES F32x16 LoadLanes(DType dtype, const void* array, int64_t index, int count) {
  if (dtype == DType::kF32) {
    const float* from = static_cast<const float*>(array) + index;
    return count == kLanes ? LoadF32(from) : LoadF32Tail(from, count);
  }
  const uint16_t* from = static_cast<const uint16_t*>(array) + index;
  return WidenBf16(count == kLanes ? LoadU16(from) : LoadU16Tail(from, count));
}

TANDEM_LANES void StoreLanes(DType dtype, void* array, int64_t index, F32x16 x, int count) {
  if (dtype == DType::kF32) {
    float* to = static_cast<float*>(array) + index;
    if (count == kLanes) {
      StoreF32(to, x);
    } else {
      StoreF32Tail(to, x, count);
    }
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(array) + index;
  if (count == kLanes) {
    StoreU16(to, NarrowBf16(x));
  } else {
    StoreU16Tail(to, NarrowBf16(x), count);
  }
}

// The functions of vector_math.h in every lane, bit by bit.
struct ExpPartsOf {
  F32x16 fraction;
  F32x16 scale;
};
TANDEM_LANES ExpPartsOf SplitExpOf(F32x16 x) {
  const F32x16 shifted = x * kLog2E + kRoundFloat;
  const F32x16 n = shifted - kRoundFloat;
  const F32x16 r = (x - n * kLn2High) - n * kLn2Low;
  const F32x16 q = kExp0 + r * (kExp1 + r * (kExp2 + r * (kExp3 + r * kExp4)));
  return {.fraction = r + (r * r) * q, .scale = FloatsOf((BitsOf(shifted) + 127u) << 23)};
}

TANDEM_LANES F32x16 ExpOf(F32x16 x) {
  const ExpPartsOf parts = SplitExpOf(x);
  const F32x16 p = 1.0f + parts.fraction;
  const F32x16 y = Select(x < kExpLowest, Splat(0.0f), p * parts.scale);
  return Select(x > kExpHighest, Splat(__builtin_inff()), y);
}

TANDEM_LANES F32x16 SiluOf(F32x16 x) { return x / (1.0f + ExpOf(-x)); }

TANDEM_LANES F32x16 GeluTanhOf(F32x16 x) {
  const F32x16 cube = (x * x) * x;
  const F32x16 y = x + 0.044715f * cube;
  return x / (1.0f + ExpOf(-0x1.988454p+0f * y));
}

TANDEM_LANES F32x16 TanhOf(F32x16 x) {
  const U32x16 sign = BitsOf(x) & 0x80000000u;
  const F32x16 y = -2.0f * FloatsOf(BitsOf(x) & 0x7FFFFFFFu);
  const ExpPartsOf parts = SplitExpOf(Select(y < kExpLowest, Splat(kExpLowest), y));
  const F32x16 t = (parts.scale - 1.0f) + parts.scale * parts.fraction;
  return FloatsOf(BitsOf((0.0f - t) / (2.0f + t)) | sign);
}

TANDEM_LANES F32x16 SoftCapOf(F32x16 x, float cap) { return cap * TanhOf(x / cap); }

// The larger magnitude in every lane, by its bits: a NaN is above all numbers.
TANDEM_LANES F32x16 LargerMagnitudeOf(F32x16 largest, F32x16 x) {
  const F32x16 magnitude = FloatsOf(BitsOf(x) & 0x7FFFFFFFu);
  return Select(SignedOf(BitsOf(magnitude)) > SignedOf(BitsOf(largest)), magnitude, largest);
}

// The largest of such lanes.
TANDEM_LANES float LargestOfLanes(F32x16 largest) {
  uint32_t lanes[kLanes];
  std::memcpy(lanes, &largest, sizeof(lanes));
  uint32_t bits = 0;
  for (const uint32_t lane : lanes) bits = lane > bits ? lane : bits;
  return __builtin_bit_cast(float, bits);
}

// ToInt8 of every lane.
TANDEM_LANES I32x16 ToInt8Of(F32x16 x, float scale) {
  if (scale == 0.0f) return I32x16{};
  F32x16 y = x / scale;
  y = Select(y > -kInt8Max, y, Splat(-kInt8Max));
  y = Select(y < kInt8Max, y, Splat(kInt8Max));
  return SignedOf(BitsOf(y + kRoundFloat) - __builtin_bit_cast(uint32_t, kRoundFloat));
}

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_LANES_H_
