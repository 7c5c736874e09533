// Elements of arrays of either type, read and written as floats by a kernel.

#ifndef TANDEM_KERNELS_CUDA_NUMBERS_H_
#define TANDEM_KERNELS_CUDA_NUMBERS_H_

#include <cstdint>

#include "kernels/api/dtype.h"
#include "kernels/cuda/simt.h"

namespace tandem {

__device__ __forceinline__ float Load(DType dtype, const void* array, int64_t index) {
  return dtype == DType::kF32 ? static_cast<const float*>(array)[index]
                              : ToFloat(static_cast<const Bfloat16*>(array)[index]);
}

__device__ __forceinline__ void Store(DType dtype, void* array, int64_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(array)[index] = value;
  } else {
    static_cast<Bfloat16*>(array)[index] = ToBfloat16(value);
  }
}

// As it is once it has been stored.
__device__ __forceinline__ float Rounded(DType dtype, float value) {
  return dtype == DType::kF32 ? value : ToFloat(ToBfloat16(value));
}

// The two numbers of a pair of bf16 in one word, the first in its lower half.
__device__ __forceinline__ float FirstOf(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float SecondOf(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

// Two 8-bit floats (E4M3), in the upper bytes of either half of a word, as numbers of bf16: four
// places lower they are 2^120 too low there, denormals, too. The carry of a NaN's magnitude gives
// it the exponent of one. What is in the lower bytes does not matter.
__device__ __forceinline__ uint32_t PairOfE4m3(uint32_t bytes) {
  const uint32_t magnitudes = (bytes & 0x7F007F00u) >> 4;
  const uint32_t of_nans = (magnitudes + 0x00100010u) & 0x08000800u;
  return RaiseBf16Pair((magnitudes + of_nans * 15) | (bytes & 0x80008000u));
}
// The same where none is a NaN.
__device__ __forceinline__ uint32_t PairOfE4m3Numbers(uint32_t bytes) {
  return RaiseBf16Pair((bytes & 0x7F007F00u) >> 4 | (bytes & 0x80008000u));
}

// Sixteen lanes of a warp, or both halves of one at once: the fixed tree of SumLanes. Every lane of
// the half has the sum.
__device__ __forceinline__ float SumOfLanes(float lane) {
  lane = lane + __shfl_xor_sync(0xFFFFFFFFu, lane, 8);
  lane = lane + __shfl_xor_sync(0xFFFFFFFFu, lane, 4);
  lane = lane + __shfl_xor_sync(0xFFFFFFFFu, lane, 2);
  return lane + __shfl_xor_sync(0xFFFFFFFFu, lane, 1);
}

// The largest that a thread of the block has; all have it. `of_warps` has room for kWarps, and may
// be written to again only behind a barrier.
template <int kWarps>
__device__ __forceinline__ uint32_t LargestOfBlock(uint32_t value, SharedPtr<uint32_t> of_warps) {
  for (int step = 16; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) {
    const uint32_t other = of_warps[warp];
    value = other > value ? other : value;
  }
  return value;
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_NUMBERS_H_
