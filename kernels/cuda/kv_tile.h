// Where the numbers of a KV tile are: the layout of kernels/cpu/kv_tiles.h, so that blocks move
// between a CPU and a GPU as they are. And what of them enters a product at once.
//
// A tile of B tokens is B / 16 sub-tiles; D' = D rounded up to 16:
//   f32, P = 1, and bf16, P = 2:
//     K: [D / P][16 tokens][P]
//     V: [16 / P][D'][P]
//   int8, a byte a number; behind them [16 tokens] scales in f32:
//     K: [D'][16 tokens]
//     V: [4][D' / 16][4 tokens][16]
//   fp8: the same without scales
//   int8g8, a byte a number, scales of 8 numbers of a token in a byte:
//     K: [D' / 8][16 tokens' scales, then 8 × 16 tokens]
//     V: [2][D' / 16][8 tokens' scales of 2 groups, then 8 tokens × 16]

#ifndef TANDEM_KERNELS_CUDA_KV_TILE_H_
#define TANDEM_KERNELS_CUDA_KV_TILE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/numbers.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/host_args.h"
#include "kernels/support/int8.h"

namespace tandem {

__host__ __device__ constexpr int PaddedHeadDim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// What one kind of KV is made of, computed with in kDType. A unit is what kP numbers of one lane
// are: neighbours of K, or of two tokens of V. Plain numbers lie in words, a unit each.
template <int kPerWord>
struct WordKv {
  static constexpr int kP = kPerWord;
  static constexpr bool kHasTokenScales = false;
  static constexpr int kRingPadBytes = 64;
  using Unit = uint32_t;

  __host__ __device__ static constexpr int SubTileBytes(int head_dim) {
    return kKvSubTileTokens * PaddedHeadDim(head_dim) * (4 / kP);
  }
  __device__ static Unit Key(SharedPtr<std::byte> k, int token, int unit) {
    return SharedCast<uint32_t>(k)[unit * kKvSubTileTokens + token];
  }
  __device__ static Unit Value(SharedPtr<std::byte> v, int unit, int d, int padded) {
    return SharedCast<uint32_t>(v)[unit * padded + d];
  }
};
struct F32Kv : WordKv<1> {
  static constexpr KvType kType = KvType::kF32;
  static constexpr DType kDType = DType::kF32;
  static constexpr const char* kFormat = "cpu.1.p1.f32";
  __device__ static float First(Unit unit) { return __uint_as_float(unit); }
  __device__ static float Second(Unit) { return 0.0f; }
  __device__ static Unit OnlyFirst(Unit unit) { return unit; }
};
// Units that are two numbers of bf16.
struct PairUnits {
  using Unit = uint32_t;
  __device__ static float First(Unit unit) { return FirstOf(unit); }
  __device__ static float Second(Unit unit) { return SecondOf(unit); }
  __device__ static Unit OnlyFirst(Unit unit) { return unit & 0xFFFFu; }
};
struct Bf16Kv : WordKv<2>, PairUnits {
  static constexpr KvType kType = KvType::kBF16;
  static constexpr DType kDType = DType::kBF16;
  static constexpr const char* kFormat = "cpu.1.p2.bf16";
  using Unit = PairUnits::Unit;
};
struct Bf16InF32Kv : Bf16Kv {
  static constexpr DType kDType = DType::kF32;
};

// A number of 8 bits: what a byte is with the other sign bit is added to 2^23, whose last places it
// has then.
__device__ __forceinline__ float FloatOfInt8(uint32_t byte) {
  return __uint_as_float(byte ^ 0x4B000080u) - 0x1.0001p+23f;
}
__device__ __forceinline__ float Int8At(SharedPtr<std::byte> bytes, int at) {
  return FloatOfInt8(SharedCast<uint8_t>(bytes)[at]);
}

// Where the numbers of a token are that have a byte each.
struct ByteNumbers {
  static constexpr int kTokens = 4;  // of a vector of V

  __host__ __device__ static constexpr int NumberBytes(int head_dim) {
    return kKvSubTileTokens * PaddedHeadDim(head_dim);
  }
  __host__ __device__ static constexpr int KeyAt(int token, int d) {
    return d * kKvSubTileTokens + token;
  }
  __host__ __device__ static constexpr int ValueAt(int token, int d, int padded) {
    return token / kTokens * kTokens * padded + d / 16 * (16 * kTokens) + token % kTokens * 16 +
           d % 16;
  }
};

struct Fp8Kv : ByteNumbers, PairUnits {
  static constexpr KvType kType = KvType::kFp8;
  static constexpr DType kDType = DType::kBF16;
  static constexpr int kP = 2;
  static constexpr const char* kFormat = "cpu.1.p4.fp8";
  static constexpr bool kHasTokenScales = false;
  static constexpr int kRingPadBytes = 16;

  __host__ __device__ static constexpr int SubTileBytes(int head_dim) {
    return NumberBytes(head_dim);
  }
  __device__ static Unit Key(SharedPtr<std::byte> k, int token, int unit) {
    return PairAt(k, KeyAt(token, 2 * unit), KeyAt(token, 2 * unit + 1));
  }
  __device__ static Unit Value(SharedPtr<std::byte> v, int unit, int d, int padded) {
    const int at = ValueAt(2 * unit, d, padded);
    return PairAt(v, at, at + 16);
  }

 private:
  __device__ static Unit PairAt(SharedPtr<std::byte> bytes, int first, int second) {
    const SharedPtr<uint8_t> at = SharedCast<uint8_t>(bytes);
    return PairOfE4m3(uint32_t{at[first]} << 8 | uint32_t{at[second]} << 24);
  }
};
struct Fp8InF32Kv : Fp8Kv {
  static constexpr DType kDType = DType::kF32;
};

// Both kinds of 8 bits with scales: units are two numbers, widened.
struct WidenedKv {
  static constexpr DType kDType = DType::kBF16;
  static constexpr int kP = 2;
  using Unit = float2;
  __device__ static float First(const Unit& unit) { return unit.x; }
  __device__ static float Second(const Unit& unit) { return unit.y; }
  __device__ static Unit OnlyFirst(const Unit& unit) { return {unit.x, 0.0f}; }
};

// With a scale a token, which is no part of a unit.
struct Int8Kv : WidenedKv, ByteNumbers {
  static constexpr KvType kType = KvType::kInt8;
  static constexpr const char* kFormat = "cpu.1.p4.int8";
  static constexpr bool kHasTokenScales = true;
  // Behind a sub-tile of K, in shared memory, are the scales of that of V.
  static constexpr int kScaleBytes = kKvSubTileTokens * 4;
  static constexpr int kRingPadBytes = kScaleBytes + 16;

  __host__ __device__ static constexpr int SubTileBytes(int head_dim) {
    return NumberBytes(head_dim) + kScaleBytes;
  }

  __device__ static Unit Key(SharedPtr<std::byte> k, int token, int unit) {
    return {Int8At(k, KeyAt(token, 2 * unit)), Int8At(k, KeyAt(token, 2 * unit + 1))};
  }
  __device__ static Unit Value(SharedPtr<std::byte> v, int unit, int d, int padded) {
    const int at = ValueAt(2 * unit, d, padded);
    return {Int8At(v, at), Int8At(v, at + 16)};
  }
};
struct Int8InF32Kv : Int8Kv {
  static constexpr DType kDType = DType::kF32;
};

// With a scale of a byte for each 8 numbers, with which they are numbers of bf16.
struct GroupedKv : WidenedKv {
  static constexpr KvType kType = KvType::kInt8G8;
  static constexpr const char* kFormat = "cpu.1.p8.int8g8";
  static constexpr bool kHasTokenScales = false;
  static constexpr int kRingPadBytes = 64;
  static constexpr int kGroup = 8;
  static constexpr int kScaleBytes = 16;  // of a vector of K or V, before its numbers
  static constexpr int kVectorBytes = kScaleBytes + kGroup * 16;

  __host__ __device__ static constexpr int SubTileBytes(int head_dim) {
    return PaddedHeadDim(head_dim) / kGroup * kVectorBytes;
  }
  // The vector with number d of a token; where in it that and its scale are.
  __host__ __device__ static constexpr int KeyVectorAt(int d) { return d / kGroup * kVectorBytes; }
  __host__ __device__ static constexpr int ValueVectorAt(int token, int d, int padded) {
    return (token / kGroup * (padded / 16) + d / 16) * kVectorBytes;
  }
  __host__ __device__ static constexpr int KeyAt(int token, int d) {
    return kScaleBytes + d % kGroup * kKvSubTileTokens + token;
  }
  __host__ __device__ static constexpr int ValueAt(int token, int d) {
    return kScaleBytes + token % kGroup * 16 + d % 16;
  }
  __host__ __device__ static constexpr int ValueScaleAt(int token, int d) {
    return token % kGroup * 2 + d % 16 / kGroup;
  }

  __device__ static Unit Key(SharedPtr<std::byte> k, int token, int unit) {
    const SharedPtr<std::byte> vector = k + KeyVectorAt(2 * unit);
    const float scale = ScaleAt(vector, token);
    return {scale * Int8At(vector, KeyAt(token, 2 * unit)),
            scale * Int8At(vector, KeyAt(token, 2 * unit + 1))};
  }
  __device__ static Unit Value(SharedPtr<std::byte> v, int unit, int d, int padded) {
    const int token = 2 * unit;
    const SharedPtr<std::byte> vector = v + ValueVectorAt(token, d, padded);
    return {ScaleAt(vector, ValueScaleAt(token, d)) * Int8At(vector, ValueAt(token, d)),
            ScaleAt(vector, ValueScaleAt(token + 1, d)) * Int8At(vector, ValueAt(token + 1, d))};
  }

 private:
  __device__ static float ScaleAt(SharedPtr<std::byte> vector, int at) {
    return Int8GroupScaleToFloat(SharedCast<uint8_t>(vector)[at]);
  }
};
struct GroupedInF32Kv : GroupedKv {
  static constexpr DType kDType = DType::kF32;
};

// The sub-tile with position `offset` of a block. `tile`: a KV head's, of V behind those of K.
template <typename Kv>
__device__ __forceinline__ std::byte* SubTileAt(const HostKvLayerView& kv, int64_t block,
                                                int offset, int tile) {
  return kv.base + static_cast<size_t>(block) * kv.block_stride_bytes + kv.layer_offset_bytes +
         static_cast<size_t>(tile) * kv.tile_bytes +
         static_cast<size_t>(offset / kKvSubTileTokens) * Kv::SubTileBytes(kv.shape.head_dim);
}

// acc + Σ a · b over the P numbers of a unit: each product and its addition round once, in bf16 the
// odd one's first (docs/numerics.md, Matrix products). `b` are floats, b_first of the even number.
template <typename Kv>
__device__ __forceinline__ float AddProducts(float acc, const typename Kv::Unit& unit,
                                             float b_first, float b_second) {
  if constexpr (Kv::kP == 1) {
    return __fmaf_rn(Kv::First(unit), b_first, acc);
  } else if constexpr (Kv::kDType == DType::kF32) {
    return __fmaf_rn(Kv::Second(unit), b_second, __fmaf_rn(Kv::First(unit), b_first, acc));
  } else {
    return __fmaf_rn(Kv::First(unit), b_first, __fmaf_rn(Kv::Second(unit), b_second, acc));
  }
}

// function.template operator()<Kv>() for a kind of KV that kernels compute with.
template <typename Function>
auto ByKv(KvType type, DType compute_dtype, Function function) {
  const bool f32 = compute_dtype == DType::kF32;
  switch (type) {
    case KvType::kF32:
      return function.template operator()<F32Kv>();
    case KvType::kBF16:
      return f32 ? function.template operator()<Bf16InF32Kv>()
                 : function.template operator()<Bf16Kv>();
    case KvType::kInt8:
      return f32 ? function.template operator()<Int8InF32Kv>()
                 : function.template operator()<Int8Kv>();
    case KvType::kFp8:
      return f32 ? function.template operator()<Fp8InF32Kv>()
                 : function.template operator()<Fp8Kv>();
    case KvType::kInt8G8:
      break;
  }
  return f32 ? function.template operator()<GroupedInF32Kv>()
             : function.template operator()<GroupedKv>();
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_KV_TILE_H_
