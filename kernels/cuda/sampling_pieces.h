// What the kernels of sampling (cuda_sampling.cu) have in common: ids as keys, weights, sums and
// maxima of a block's threads, and the pieces that a row is read in.

#ifndef TANDEM_KERNELS_CUDA_SAMPLING_PIECES_H_
#define TANDEM_KERNELS_CUDA_SAMPLING_PIECES_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/cuda_sampling.h"
#include "kernels/cuda/simt.h"
#include "kernels/sampling/draw.h"
#include "kernels/sampling/row_math.h"
#include "kernels/support/vector_math.h"

namespace tandem {

inline constexpr int kPieceIds = static_cast<int>(kVocabularyPiece);
inline constexpr int kMaxPieces = static_cast<int>(kMaxVocabulary) / kPieceIds;
inline constexpr int kPieceThreads = 256;  // of a block that reads a piece
inline constexpr int kHeldIds = kPieceIds / kPieceThreads;
inline constexpr int kMaxWarps = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;
inline constexpr uint32_t kHighestId = 0xFFFFFFFFu;

// ---- keys and weights ----

// The order of Better (kernels/sampling/row.h) as numbers, the best being the highest. Always
// above 0.
__device__ __forceinline__ uint64_t KeyOf(float logit, int64_t id) {
  const uint32_t bits = logit == 0.0f ? 0u : __float_as_uint(logit);  // Both zeros are equal.
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (kHighestId - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int32_t IdOf(uint64_t key) {
  return static_cast<int32_t>(kHighestId - static_cast<uint32_t>(key));
}

// But for the sign of a zero, which no weight depends on.
__device__ __forceinline__ float LogitOf(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}

__device__ __forceinline__ bool IsFinite(float x) {
  return (__float_as_uint(x) & 0x7F800000u) != 0x7F800000u;
}

// What ids weigh. Where the highest logit is no finite one, all are in the last bucket.
struct SampleWeights {
  float max;
  float temperature;

  __device__ float Exponent(float logit) const {
    const float distance = logit - max;
    return temperature == 1.0f ? distance : distance / temperature;
  }
  __device__ static uint64_t At(float exponent) { return WholeWeight(Exp(exponent) * kWeightOne); }
  __device__ uint64_t Of(float logit) const { return At(Exponent(logit)); }
  // Rising with falling logits. The last is from -31.875 on, where exp is below 2^-45.
  __device__ static int Bucket(float exponent) {
    const float eighths = exponent * -8.0f;
    return eighths < kNumBuckets - 1 ? static_cast<int>(eighths) : kNumBuckets - 1;
  }
};

// The least sum that reaches `share` of `total`, in units of 2^-32, and at least 1.
__device__ __forceinline__ uint64_t NeededOf(uint32_t share, uint64_t total) {
  const uint64_t low = (total & 0xFFFFFFFFu) * share + 0xFFFFFFFFu;
  const uint64_t needed = (total >> 32) * share + (low >> 32);
  return needed > 0 ? needed : 1;
}

// ---- what threads find together ----

__device__ __forceinline__ uint64_t LargerKey(uint64_t a, uint64_t b) { return a > b ? a : b; }

__device__ __forceinline__ uint64_t LargestOfWarp(uint64_t mine) {
  for (int step = 16; step > 0; step /= 2) {
    mine = LargerKey(mine, __shfl_xor_sync(kAllLanes, mine, step));
  }
  return mine;
}

// `warps` has room for a number of each warp; others may use it when this returns.
template <int kCount>
__device__ uint64_t LargestOfBlock(uint64_t mine, SharedPtr<uint64_t> warps) {
  mine = LargestOfWarp(mine);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kCount / 32; ++warp) mine = LargerKey(mine, warps[warp]);
  __syncthreads();
  return mine;
}

// Sums over the threads before this one, and over all.
struct BlockSum {
  uint64_t before;
  uint64_t all;
};
template <int kCount>
__device__ BlockSum SumOfBlock(uint64_t mine, SharedPtr<uint64_t> warps) {
  const int lane = threadIdx.x % 32;
  const int own = threadIdx.x / 32;
  uint64_t sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t below = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += below;
  }
  if (lane == 31) warps[own] = sum;
  __syncthreads();
  BlockSum prefix = {sum - mine, 0};
#pragma unroll
  for (int warp = 0; warp < kCount / 32; ++warp) {
    const uint64_t of_warp = warps[warp];
    if (warp < own) prefix.before += of_warp;
    prefix.all += of_warp;
  }
  __syncthreads();
  return prefix;
}

// The largest of a row's pieces, found by each warp for itself.
__device__ __forceinline__ uint64_t LargestOfPieces(const uint64_t* pieces, int count) {
  uint64_t largest = 0;
  for (int piece = threadIdx.x % 32; piece < count; piece += 32) {
    largest = LargerKey(largest, pieces[piece]);
  }
  return LargestOfWarp(largest);
}

// ---- rows ----

__device__ __forceinline__ const float* LogitsOf(const SampleLaunch& launch, int row) {
  return launch.logits + int64_t{row} * launch.vocabulary;
}
// What a job draws from: its row, or its own copy.
__device__ __forceinline__ const float* SourceOf(const SampleLaunch& launch, const SampleJob& job) {
  return job.edit < 0 ? LogitsOf(launch, job.row)
                      : launch.edited + int64_t{job.edit} * launch.vocabulary;
}

// Keys of the best ids: of a row, by its place, and of what a job draws from.
__device__ __forceinline__ uint64_t BestOfRow(const SampleLaunch& launch, int place) {
  return LargestOfPieces(launch.best + int64_t{place} * launch.num_pieces, launch.num_pieces);
}
__device__ __forceinline__ uint64_t BestOf(const SampleLaunch& launch, const SampleJob& job) {
  return BestOfRow(launch, job.edit < 0 ? job.place : launch.num_rows + job.edit);
}

// The piece of the running block, whose number is job · P + piece.
struct VocabularyPiece {
  int job;
  int index;
  int64_t begin;
  int count;

  __device__ explicit VocabularyPiece(const SampleLaunch& launch)
      : job(static_cast<int>(blockIdx.x) / launch.num_pieces),
        index(static_cast<int>(blockIdx.x) % launch.num_pieces),
        begin(int64_t{index} * kPieceIds),
        count(CountFrom(launch, begin)) {}
  __device__ static int CountFrom(const SampleLaunch& launch, int64_t begin) {
    const int64_t left = launch.vocabulary - begin;
    return left < kPieceIds ? static_cast<int>(left) : kPieceIds;
  }
};

// A thread's share of a piece.
class HeldLogits {
 public:
  __device__ HeldLogits(const float* logits, const VocabularyPiece& piece) : count_(piece.count) {
#pragma unroll
    for (int i = 0; i < kHeldIds; ++i) {
      const int place = static_cast<int>(threadIdx.x) + i * kPieceThreads;
      held_[i] = place < count_ ? logits[piece.begin + place] : 0.0f;
    }
  }
  // function(place, logit), ids rising.
  template <typename Function>
  __device__ __forceinline__ void ForEach(const Function& function) const {
#pragma unroll
    for (int i = 0; i < kHeldIds; ++i) {
      const int place = static_cast<int>(threadIdx.x) + i * kPieceThreads;
      if (place < count_) function(place, held_[i]);
    }
  }

 private:
  const int count_;
  float held_[kHeldIds];
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_SAMPLING_PIECES_H_
