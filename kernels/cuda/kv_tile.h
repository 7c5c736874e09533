// Where the numbers of a KV tile are: the layout of kernels/cpu/attention_kernels.inc.h, so that
// blocks move between a CPU and a GPU as they are.
//
// A tile of B tokens is B / 16 sub-tiles. P = 2 for bf16, 1 for f32; D' = D rounded up to 16:
//   K: [D / P][16 tokens][P]
//   V: [16 / P][D'][P]

#ifndef TANDEM_KERNELS_CUDA_KV_TILE_H_
#define TANDEM_KERNELS_CUDA_KV_TILE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/numbers.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/host_args.h"

namespace tandem {

__host__ __device__ constexpr int PaddedHeadDim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// What one kind of KV is made of. A word holds P numbers of one lane, four bytes.
struct F32Kv {
  static constexpr KvType kType = KvType::kF32;
  static constexpr DType kDType = DType::kF32;
  static constexpr int kPerWord = 1;
};
struct Bf16Kv {
  static constexpr KvType kType = KvType::kBF16;
  static constexpr DType kDType = DType::kBF16;
  static constexpr int kPerWord = 2;
};

template <typename Kv>
__host__ __device__ constexpr int SubTileWords(int head_dim) {
  return kKvSubTileTokens * PaddedHeadDim(head_dim) / Kv::kPerWord;
}

// The sub-tile with position `offset` of a block. `tile`: a KV head's, of V behind those of K.
template <typename Kv>
__device__ __forceinline__ std::byte* SubTileAt(const HostKvLayerView& kv, int64_t block,
                                                int offset, int tile) {
  return kv.base + static_cast<size_t>(block) * kv.block_stride_bytes + kv.layer_offset_bytes +
         static_cast<size_t>(tile) * kv.tile_bytes +
         static_cast<size_t>(offset / kKvSubTileTokens) * SubTileWords<Kv>(kv.shape.head_dim) * 4;
}

// acc + Σ a · b over the P numbers of a word: each product and its addition round once, the odd
// one's first (docs/numerics.md, Matrix products). `b` are floats, b_first of the even number.
template <typename Kv>
__device__ __forceinline__ float AddProducts(float acc, uint32_t word, float b_first,
                                             float b_second) {
  if constexpr (Kv::kPerWord == 1) {
    return __fmaf_rn(__uint_as_float(word), b_first, acc);
  } else {
    return __fmaf_rn(FirstOf(word), b_first, __fmaf_rn(SecondOf(word), b_second, acc));
  }
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_KV_TILE_H_
