// The innermost loop of GEMM and of both products of attention, over any of the arithmetics
// ("policies") below it:
//
//   acc[row][vector] += a[unit][row] · w[unit][vector],   units ascending.
//
// A policy says how many inputs make a unit and how one unit is multiplied. One accumulator per
// output and one order, so a caller may stop at any unit, store, and resume.
//
// Where a policy's numbers are integers, so are the sums: lanes hold the bits of an int32.
//
//   struct Policy {
//     static constexpr bool kIsInteger;
//     static constexpr bool kHasGroups;           // of inputs, each with its scales
//     static constexpr int kPerUnit;              // inputs (k) of a unit
//     static constexpr int kPhases;               // steps of a unit, in order
//     static constexpr int kWeightVectorBytes;    // 16 outputs of one unit, scales included
//     static constexpr int kRowUnitBytes;         // one row of one unit
//     static F32x16 Weight<phase>(const std::byte*);
//     static F32x16 Row<phase>(const std::byte*);          // the same in every lane
//     static F32x16 Accumulate(F32x16 acc, F32x16 w, F32x16 a);
//     static int InputOf(int phase);                        // rows of floats: attention's
//     static constexpr int32_t kWeightExcess;               // integers: weights are so much higher
//     static void StoreRow(const int8_t* unit, std::byte*);  // integers: inputs of one row
//   };

#ifndef TANDEM_KERNELS_CPU_MICRO_KERNEL_H_
#define TANDEM_KERNELS_CPU_MICRO_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cpu/lanes.h"

namespace tandem {
namespace {

// Whether registers that hold `sums` sums hold those of so many rows and vectors, and operands.
// With six, 3 rows of 2 vectors lack one register, and spilling takes half of the speed.
constexpr bool SumsFit(int sums, int rows, int vectors) {
  return rows * vectors <= sums && (sums != 6 || rows != 3 || vectors != 2);
}

// Strides are in bytes. With each unit as much as a vector takes is fetched into the cache, the
// first at prefetch[v]: weights to come, which may be in memory still. `kCache` is the level that
// they are fetched into.
template <typename Policy, int kRows, int kVectors, int kCache = 1>
TANDEM_LANES void AccumulateUnits(const std::byte* a, int64_t a_unit_stride, int64_t a_row_stride,
                                  const std::byte* const (&w)[kVectors], int64_t w_unit_stride,
                                  const std::byte* const (&prefetch)[kVectors],
                                  int64_t prefetch_stride, int64_t units,
                                  F32x16 (&acc)[kRows][kVectors]) {
  // Where a byte has two numbers, both are taken while it is in a register.
  constexpr bool kTogether = Policy::kHasGroups && kRows < kVectors;
  const std::byte* weights[kVectors];
  for (int v = 0; v < kVectors; ++v) weights[v] = w[v];
  const auto phase = [&]<int kPhase>() __attribute__((always_inline)) {
    // The fewer operands stay in registers; the others pass by.
    if constexpr (kTogether) {
      F32x16 row[2][kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        row[0][r] = Policy::template Row<0>(a + r * a_row_stride);
        row[1][r] = Policy::template Row<1>(a + r * a_row_stride);
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const F32x16 first = Policy::template Weight<0>(weights[v]);
        const F32x16 second = Policy::template Weight<1>(weights[v]);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          acc[r][v] = Policy::Accumulate(acc[r][v], first, row[0][r]);
          acc[r][v] = Policy::Accumulate(acc[r][v], second, row[1][r]);
        }
      }
    } else if constexpr (kRows < kVectors) {
      F32x16 row[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) row[r] = Policy::template Row<kPhase>(a + r * a_row_stride);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const F32x16 weight = Policy::template Weight<kPhase>(weights[v]);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) acc[r][v] = Policy::Accumulate(acc[r][v], weight, row[r]);
      }
    } else {
      F32x16 weight[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) weight[v] = Policy::template Weight<kPhase>(weights[v]);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const F32x16 row = Policy::template Row<kPhase>(a + r * a_row_stride);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          acc[r][v] = Policy::Accumulate(acc[r][v], weight[v], row);
      }
    }
  };
  for (int64_t unit = 0; unit < units; ++unit) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
      for (int line = 0; line < Policy::kWeightVectorBytes; line += 64) {
        __builtin_prefetch(prefetch[v] + unit * prefetch_stride + line, /*rw=*/0,
                           /*locality=*/4 - kCache);
      }
    }
    constexpr int kCalls = kTogether ? 1 : Policy::kPhases;
    [&]<int... kPhase>(std::integer_sequence<int, kPhase...>) __attribute__((always_inline)) {
      (phase.template operator()<kPhase>(), ...);
    }
    (std::make_integer_sequence<int, kCalls>());
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weights[v] += w_unit_stride;
    a += a_unit_stride;
  }
}

// Rows of words of four bytes, of which each step takes one. What are no floats are spread as whole
// numbers: GCC then has vdpbf16ps and vpdpbusd do it (KV in 8 bits gains a fifth).
template <int kSteps, typename Word = uint32_t>
struct RowWordsPolicy {
  static constexpr bool kHasGroups = false;
  static constexpr int kPhases = kSteps;
  static constexpr int kWeightVectorBytes = 64;
  static constexpr int kRowUnitBytes = 4 * kSteps;  // In the order of the steps.
  template <int kPhase>
  TANDEM_LANES F32x16 Row(const std::byte* from) {
    const Word word = reinterpret_cast<const Word*>(from)[kPhase];
    if constexpr (std::is_same_v<Word, float>) {
      return Splat(word);
    } else {
      return FloatsOf(SplatU32(word));
    }
  }
};

// Floats, and one step an input: ascending, or in each pair the odd one first.
template <int kInputs, bool kOddFirst>
struct FloatRowsPolicy : RowWordsPolicy<kInputs, float> {
  static constexpr bool kIsInteger = false;
  static constexpr int kPerUnit = kInputs;
  static constexpr int InputOf(int phase) { return kOddFirst ? phase ^ 1 : phase; }
  TANDEM_LANES F32x16 Accumulate(F32x16 acc, F32x16 w, F32x16 a) { return MulAdd(w, a, acc); }
};

// f32, one input a unit.
struct F32Policy : FloatRowsPolicy<1, false> {
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    return LoadF32(reinterpret_cast<const float*>(from));
  }
};

// Numbers kept in bf16, two inputs a unit, widened and then multiplied as floats.
template <bool kOddFirst>
struct WidenedBf16Policy : FloatRowsPolicy<2, kOddFirst> {
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    const U32x16 pair = LoadU32(from);
    return FloatsOf(WidenedBf16Policy::InputOf(kPhase) == 1 ? pair & 0xFFFF0000u : pair << 16);
  }
};

// bf16 by two MulAdds of widened numbers, the odd input first; rows are widened once. Where MulAdd
// is fused these are the bits of vdpbf16ps (a product of bf16 numbers is exact in float, and the
// kernels' float environment flushes denormals as that instruction does); on Sapphire Rapids, where
// vdpbf16ps runs at a quarter of the rate of FMA, this is twice as fast.
using MulAddBf16Policy = WidenedBf16Policy</*kOddFirst=*/true>;

#if defined(__AVX512BF16__)

// bf16 by vdpbf16ps, two inputs a unit. The instruction adds the product of the odd input first,
// then that of the even one, each rounded to float.
struct DotBf16Policy : RowWordsPolicy<1> {
  static constexpr bool kIsInteger = false;
  static constexpr int kPerUnit = 2;
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    return FloatsOf(LoadU32(from));
  }
  TANDEM_LANES F32x16 Accumulate(F32x16 acc, F32x16 w, F32x16 a) {
    return (F32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)(__m512)w, (__m512bh)(__m512)a);
  }
};

#endif  // __AVX512BF16__

// Whole numbers: sums are exact modulo 2^32, in any order. Weights enter products `kExcess` above
// their numbers; what that adds to a sum is known with the row (RowRun).
template <int kInputs, int kSteps, int32_t kExcess>
struct IntegerPolicy : RowWordsPolicy<kSteps> {
  static constexpr bool kIsInteger = true;
  static constexpr int kPerUnit = kInputs;
  static constexpr int32_t kWeightExcess = kExcess;
  TANDEM_LANES void StoreRow(const int8_t* unit, std::byte* to) { std::memcpy(to, unit, kInputs); }
};

// 8 bits, four inputs a unit: weights are kept 128 above their numbers and so without a sign, rows
// have one.

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

struct DotInt8Policy : IntegerPolicy<4, 1, 128> {
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    return FloatsOf(LoadU32(from));
  }
  TANDEM_LANES F32x16 Accumulate(F32x16 acc, F32x16 w, F32x16 a) {
    return FloatsOf(UnsignedOf(AddQuadProducts(SignedOf(BitsOf(acc)), BitsOf(w), BitsOf(a))));
  }
};

#endif  // __AVX512VNNI__ || __AVXVNNI__

#if defined(__ARM_FEATURE_DOTPROD)

// SDOT wants a sign on both sides, so the weights lose their 128.
struct SignedDotInt8Policy : IntegerPolicy<4, 1, 0> {
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    return FloatsOf(LoadU32(from) ^ 0x80808080u);
  }
  TANDEM_LANES F32x16 Accumulate(F32x16 acc, F32x16 w, F32x16 a) {
    return FloatsOf(UnsignedOf(AddQuadProducts(SignedOf(BitsOf(acc)), BitsOf(w), BitsOf(a))));
  }
};

#endif  // __ARM_FEATURE_DOTPROD

// By products of 16 bits, two and two: the even inputs of a unit first.
struct PairInt8Policy : IntegerPolicy<4, 2, 128> {
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    const U32x16 four = LoadU32(from);
    return FloatsOf(kPhase == 0 ? EvenBytes(four) : OddBytes(four));
  }
  TANDEM_LANES F32x16 Accumulate(F32x16 acc, F32x16 w, F32x16 a) {
    return FloatsOf(UnsignedOf(AddPairProducts(SignedOf(BitsOf(acc)), BitsOf(w), BitsOf(a))));
  }
  TANDEM_LANES void StoreRow(const int8_t* four, std::byte* to) {
    const int16_t pairs[4] = {four[0], four[2], four[1], four[3]};
    std::memcpy(to, pairs, 8);
  }
};

// 4 bits, eight inputs a unit: a byte has one of the first four inputs low and one of the last four
// high. Rows are as with 8 bits; a sum begins with what the zeros of the weights take from it.
struct Int4Policy : IntegerPolicy<8, 2, 0> {
  static constexpr bool kHasGroups = true;
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    const U32x16 both = LoadU32(from);
    return FloatsOf((kPhase == 0 ? both : both >> 4) & 0x0F0F0F0Fu);
  }
  TANDEM_LANES F32x16 Accumulate(F32x16 acc, F32x16 w, F32x16 a) {
    return FloatsOf(UnsignedOf(AddByteProducts(SignedOf(BitsOf(acc)), BitsOf(w), BitsOf(a))));
  }
};

// An element of an array of f32 or bf16, and the way back.
template <typename Element>
TANDEM_LANES float Widen(Element x) {
  if constexpr (sizeof(Element) == 4) {
    return x;
  } else {
    return ToFloat(Bfloat16{x});
  }
}
template <typename Element>
TANDEM_LANES Element Narrow(float x) {
  if constexpr (sizeof(Element) == 4) {
    return x;
  } else {
    return ToBfloat16(x).bits;
  }
}

// Packs [rows] × [count] inputs as [unit][row], as bf16 or widened to floats, in the order in which
// the policy takes them; what a unit has past the last input is zero. `Row(r)` gives the row's
// elements.
template <typename Policy, typename Element, typename Row>
TANDEM_LANES void PackUnits(int rows, int64_t count, Row row, std::byte* packed) {
  constexpr int kP = Policy::kPerUnit;
  const int64_t stride = int64_t{rows} * Policy::kRowUnitBytes;
  for (int r = 0; r < rows; ++r) {
    const Element* const from = row(r);
    std::byte* to = packed + r * Policy::kRowUnitBytes;
    for (int64_t first = 0; first < count; first += kP, to += stride) {
#pragma GCC unroll 8
      for (int i = 0; i < kP; ++i) {
        const Element x = first + i < count ? from[first + i] : Element{0};
        if constexpr (Policy::kRowUnitBytes == 2 * kP) {
          std::memcpy(to + 2 * i, &x, 2);
        } else {
          const float wide = Widen(x);
          std::memcpy(to + 4 * Policy::InputOf(i), &wide, 4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_MICRO_KERNEL_H_
