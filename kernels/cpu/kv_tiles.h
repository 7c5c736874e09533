// How each type of KV lies in a tile (kernels/api/kv_pool.h), and how one token's head is written
// there. A tile of B tokens is B / 16 sub-tiles, each a small weight panel of the micro kernel, of
// units of P inputs:
//   K: [D' / P][vector]            scores: lanes are the 16 tokens, units run over D
//   V: [16 / P][D' / 16][vector]   outputs: lanes are numbers of D, units run over tokens
// D' is D rounded up to 16; V past D is zero, and of K what a unit has past D. A vector is
//   f32, P = 1, and bf16, P = 2:   [lane][P] numbers
//   int8, P = 4:                   [P][lane] numbers; behind all units [16 tokens] scales in f32
//   fp8, P = 4:                    [P][lane] numbers
//   int8g8, P = 8:                 scales of groups of 8 numbers of a token, a byte each, of K
//                                  [16 tokens], of V [8 tokens][2 groups]; then [P][lane] numbers

#ifndef TANDEM_KERNELS_CPU_KV_TILES_H_
#define TANDEM_KERNELS_CPU_KV_TILES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/api/e4m3.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/micro_kernel.h"

namespace tandem {
namespace {

// ---- how a unit is multiplied: by multiply-adds ----

// 8 bits, widened and then multiplied as floats: exact numbers up to 127.
template <bool kOddFirst>
struct WidenedInt8Policy : FloatRowsPolicy<4, kOddFirst> {
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    const int input = WidenedInt8Policy::InputOf(kPhase);
    return ToFloats(LoadInt8(reinterpret_cast<const int8_t*>(from) + input * kLanes));
  }
};

// 8-bit floats, also exact in bf16.
template <bool kOddFirst>
struct WidenedFp8Policy : FloatRowsPolicy<4, kOddFirst> {
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    const int input = WidenedFp8Policy::InputOf(kPhase);
    return WidenE4m3(WidenU8(reinterpret_cast<const uint8_t*>(from) + input * kLanes));
  }
};

// 8 bits times the scale of a group of 8, also exact in bf16. In K lanes are tokens.
template <bool kOddFirst>
struct GroupedKeyPolicy : FloatRowsPolicy<8, kOddFirst> {
  static constexpr int kScaleBytes = kLanes;
  static constexpr int kWeightVectorBytes = kScaleBytes + 8 * kLanes;
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    return Scales(from) * Numbers(from, GroupedKeyPolicy::InputOf(kPhase));
  }
  TANDEM_LANES F32x16 Scales(const std::byte* from) {
    return FloatsOf(LoadU8(reinterpret_cast<const uint8_t*>(from)) << 23);
  }
  TANDEM_LANES F32x16 Numbers(const std::byte* from, int input) {
    return ToFloats(LoadInt8(reinterpret_cast<const int8_t*>(from) + kScaleBytes + input * kLanes));
  }
};

// In V they are two groups of a token.
template <bool kOddFirst>
struct GroupedValuePolicy : GroupedKeyPolicy<kOddFirst> {
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    constexpr int kInput = GroupedValuePolicy::InputOf(kPhase);
    return SplatPair<kInput>(GroupedValuePolicy::Scales(from)) *
           GroupedValuePolicy::Numbers(from, kInput);
  }
};

template <bool kOddFirst>
struct MulAddPolicies {
  using Bf16 = WidenedBf16Policy<kOddFirst>;
  using Int8 = WidenedInt8Policy<kOddFirst>;
  using Fp8 = WidenedFp8Policy<kOddFirst>;
  using GroupedKey = GroupedKeyPolicy<kOddFirst>;
  using GroupedValue = GroupedValuePolicy<kOddFirst>;
};

#if defined(__AVX512BF16__)

// ---- by vdpbf16ps: what 8 bits are multiplied as are numbers of bf16 ----

template <typename Widened>
struct DotWidenedPolicy : RowWordsPolicy<Widened::kPerUnit / 2> {
  static constexpr bool kIsInteger = false;
  static constexpr int kPerUnit = Widened::kPerUnit;
  static constexpr int kWeightVectorBytes = Widened::kWeightVectorBytes;
  template <int kPhase>
  TANDEM_LANES F32x16 Weight(const std::byte* from) {
    const U32x16 even = BitsOf(Widened::template Weight<2 * kPhase>(from));
    const U32x16 odd = BitsOf(Widened::template Weight<2 * kPhase + 1>(from));
    return FloatsOf(odd | even >> 16);
  }
  TANDEM_LANES F32x16 Accumulate(F32x16 acc, F32x16 w, F32x16 a) {
    return DotBf16Policy::Accumulate(acc, w, a);
  }
};

struct DotPolicies {
  using Bf16 = DotBf16Policy;
  using Int8 = DotWidenedPolicy<WidenedInt8Policy<false>>;
  using Fp8 = DotWidenedPolicy<WidenedFp8Policy<false>>;
  using GroupedKey = DotWidenedPolicy<GroupedKeyPolicy<false>>;
  using GroupedValue = DotWidenedPolicy<GroupedValuePolicy<false>>;
};

#endif  // __AVX512BF16__

// ---- how a token is written ----

// Numbers as they are, or rounded to bf16.
template <typename Policy>
struct PlainTile {
  using Key = Policy;
  using Value = Policy;
  static constexpr int kP = Policy::kPerUnit;
  static constexpr KvType kType = kP == 1 ? KvType::kF32 : KvType::kBF16;
  static constexpr const char* kFormat = kP == 1 ? "cpu.1.p1.f32" : "cpu.1.p2.bf16";
  static constexpr bool kHasTokenScales = false;
  // A slot that was never written, or is stale, shares its unit with an odd last token: even times
  // zero it could make a NaN.
  static constexpr bool kClearsLastUnit = kP == 2;

  static size_t SubTileBytes(int head_dim) {
    return sizeof(Number) * kKvSubTileTokens * AttentionAccumulatorStride(head_dim);
  }

  static void WriteKey(const float* key, int head_dim, int token, std::byte* sub_tile) {
    auto* const to = reinterpret_cast<Number*>(sub_tile);
    for (int d = 0; d < head_dim; ++d) {
      to[(d / kP * kKvSubTileTokens + token) * kP + d % kP] = Narrow<Number>(key[d]);
    }
  }

  static void WriteValue(const float* value, int head_dim, int token, std::byte* sub_tile) {
    auto* const to = reinterpret_cast<Number*>(sub_tile);
    const int padded = AttentionAccumulatorStride(head_dim);
    for (int d = 0; d < padded; ++d) {
      to[(token / kP * padded + d) * kP + token % kP] =
          Narrow<Number>(d < head_dim ? value[d] : 0.0f);
    }
  }

  // A unit of V, of which only the first token counts.
  static void ClearUnit(int /*num_tokens*/, int padded, std::byte* unit) {
    auto* const numbers = reinterpret_cast<Number*>(unit);
    for (int d = 0; d < padded; ++d) numbers[kP * d + kP - 1] = 0;
  }

 private:
  using Number = std::conditional_t<kP == 1, float, uint16_t>;
};

// A byte a number, of which a token has as many as its head's, padded.
template <typename Policy>
struct ByteTile {
  using Key = Policy;
  using Value = Policy;
  static constexpr int kP = Policy::kPerUnit;

 protected:
  template <typename Number>
  static void StoreKey(const Number* numbers, int padded, int token, std::byte* sub_tile) {
    auto* const to = reinterpret_cast<Number*>(sub_tile);
    for (int d = 0; d < padded; ++d) to[d * kKvSubTileTokens + token] = numbers[d];
  }
  template <typename Number>
  static void StoreValue(const Number* numbers, int padded, int token, std::byte* sub_tile) {
    std::byte* to = sub_tile + token / kP * padded * kP + token % kP * kLanes;
    for (int d = 0; d < padded; d += kLanes, to += kP * kLanes) {
      std::memcpy(to, numbers + d, kLanes);
    }
  }
};

// 8-bit floats.
template <typename Policy>
struct Fp8Tile : ByteTile<Policy> {
  static constexpr KvType kType = KvType::kFp8;
  static constexpr const char* kFormat = "cpu.1.p4.fp8";
  static constexpr bool kHasTokenScales = false;
  static constexpr bool kClearsLastUnit = true;  // Any byte may be a NaN.

  static size_t SubTileBytes(int head_dim) {
    return static_cast<size_t>(AttentionAccumulatorStride(head_dim)) * kKvSubTileTokens;
  }

  static void WriteKey(const float* key, int head_dim, int token, std::byte* sub_tile) {
    const Row row(key, head_dim);
    Fp8Tile::StoreKey(row.numbers, row.padded, token, sub_tile);
  }
  static void WriteValue(const float* value, int head_dim, int token, std::byte* sub_tile) {
    const Row row(value, head_dim);
    Fp8Tile::StoreValue(row.numbers, row.padded, token, sub_tile);
  }

  // A unit of V, of which the first so many tokens count.
  static void ClearUnit(int num_tokens, int padded, std::byte* unit) {
    for (int d = 0; d < padded; d += kLanes, unit += Fp8Tile::kP * kLanes) {
      std::memset(unit + num_tokens * kLanes, 0, (Fp8Tile::kP - num_tokens) * kLanes);
    }
  }

 private:
  struct Row {
    Row(const float* x, int head_dim) : padded(AttentionAccumulatorStride(head_dim)) {
      for (int d = 0; d < padded; ++d) numbers[d] = d < head_dim ? ToE4m3(x[d]).bits : uint8_t{0};
    }

    const int padded;
    uint8_t numbers[kMaxAttentionHeadDim];
  };
};

// 8 bits with a scale a token, of which a score and a weight of V are multiplied once.
template <typename Policy>
struct Int8Tile : ByteTile<Policy> {
  static constexpr KvType kType = KvType::kInt8;
  static constexpr const char* kFormat = "cpu.1.p4.int8";
  static constexpr bool kHasTokenScales = true;
  static constexpr bool kClearsLastUnit = false;  // Whatever is there is a number.

  static size_t SubTileBytes(int head_dim) {
    return (AttentionAccumulatorStride(head_dim) + sizeof(float)) * kKvSubTileTokens;
  }
  static const float* TokenScales(const std::byte* sub_tile, int padded) {
    return reinterpret_cast<const float*>(sub_tile + padded * kKvSubTileTokens);
  }

  static void WriteKey(const float* key, int head_dim, int token, std::byte* sub_tile) {
    const Row row(key, head_dim);
    Int8Tile::StoreKey(row.numbers, row.padded, token, sub_tile);
    row.WriteScale(token, sub_tile);
  }

  static void WriteValue(const float* value, int head_dim, int token, std::byte* sub_tile) {
    const Row row(value, head_dim);
    Int8Tile::StoreValue(row.numbers, row.padded, token, sub_tile);
    row.WriteScale(token, sub_tile);
  }

 private:
  struct Row {
    Row(const float* x, int head_dim) : padded(AttentionAccumulatorStride(head_dim)) {
      F32x16 largest = Splat(0.0f);
      for (int d = 0; d < head_dim; d += kLanes) {
        largest = LargerMagnitudeOf(largest, LoadLanes(DType::kF32, x, d, LanesAt(d, head_dim)));
      }
      scale = Int8Scale(LargestOfLanes(largest));
      for (int d = 0; d < head_dim; d += kLanes) {
        StoreInt8(numbers + d, ToInt8Of(LoadLanes(DType::kF32, x, d, LanesAt(d, head_dim)), scale));
      }
      std::memset(numbers + head_dim, 0, padded - head_dim);
    }
    void WriteScale(int token, std::byte* sub_tile) const {
      std::memcpy(sub_tile + padded * kKvSubTileTokens + token * sizeof(float), &scale,
                  sizeof(float));
    }

    const int padded;
    float scale;
    int8_t numbers[kMaxAttentionHeadDim];
  };
};

// 8 bits with a scale of a byte for each group of 8.
template <typename KeyPolicy, typename ValuePolicy>
struct GroupedTile {
  using Key = KeyPolicy;
  using Value = ValuePolicy;
  static constexpr int kP = Key::kPerUnit;
  static constexpr KvType kType = KvType::kInt8G8;
  static constexpr const char* kFormat = "cpu.1.p8.int8g8";
  static constexpr bool kHasTokenScales = false;
  static constexpr bool kClearsLastUnit = true;  // The scales of slots that were never written.

  static size_t SubTileBytes(int head_dim) {
    return static_cast<size_t>(AttentionAccumulatorStride(head_dim) / kP * kVectorBytes);
  }

  static void WriteKey(const float* key, int head_dim, int token, std::byte* sub_tile) {
    for (int d = 0; d < AttentionAccumulatorStride(head_dim); d += kP) {
      const Group group(key + d, head_dim - d);
      std::byte* const vector = sub_tile + d / kP * kVectorBytes;
      vector[token] = std::byte{group.scale};
      for (int i = 0; i < kP; ++i) {
        vector[kScaleBytes + i * kLanes + token] = static_cast<std::byte>(group.numbers[i]);
      }
    }
  }

  static void WriteValue(const float* value, int head_dim, int token, std::byte* sub_tile) {
    const int padded = AttentionAccumulatorStride(head_dim);
    for (int d = 0; d < padded; d += kP) {
      const Group group(value + d, head_dim - d);
      std::byte* const vector =
          sub_tile + (token / kP * (padded / kLanes) + d / kLanes) * kVectorBytes;
      vector[token % kP * 2 + d % kLanes / kP] = std::byte{group.scale};
      std::memcpy(vector + kScaleBytes + token % kP * kLanes + d % kLanes, group.numbers, kP);
    }
  }

  // A unit of V, of which the first so many tokens count.
  static void ClearUnit(int num_tokens, int padded, std::byte* unit) {
    for (int d = 0; d < padded; d += kLanes, unit += kVectorBytes) {
      std::memset(unit + 2 * num_tokens, 0, 2 * (kP - num_tokens));
    }
  }

 private:
  static constexpr int kVectorBytes = Key::kWeightVectorBytes;
  static constexpr int kScaleBytes = kVectorBytes - kP * kLanes;

  struct Group {
    Group(const float* x, int count) {  // Zeros past `count`, which may be negative.
      const auto at = [=](int i) { return i < count ? x[i] : 0.0f; };
      uint32_t absmax = 0;
      for (int i = 0; i < kP; ++i) {
        absmax = MagnitudeBits(at(i)) > absmax ? MagnitudeBits(at(i)) : absmax;
      }
      scale = Int8GroupScale(__builtin_bit_cast(float, absmax));
      for (int i = 0; i < kP; ++i) {
        numbers[i] = static_cast<int8_t>(ToInt8OfGroup(at(i), scale));
      }
    }
    uint8_t scale;
    int8_t numbers[kP];
  };
};

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_KV_TILES_H_
