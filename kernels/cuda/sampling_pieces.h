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

__device__ __forceinline__ bool IsFinite(float x) {
  return (__float_as_uint(x) & 0x7F800000u) != 0x7F800000u;
}

// What a job draws from.
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
  return launch.logits + int64_t{launch.rows[row]} * launch.vocabulary;
}

__device__ __forceinline__ uint64_t NotFiniteOf(const SampleLaunch& launch, int row) {
  return LargestOfPieces(launch.not_finite + int64_t{row} * launch.num_pieces, launch.num_pieces);
}

// What a job draws from: a row, or its own copy.
struct SampleSource {
  const float* logits;
  uint64_t best;  // key
  bool all_masked;

  __device__ SampleSource(const SampleLaunch& launch, const SampleJob& job) {
    const int64_t place = job.edit < 0 ? job.row : launch.num_rows + job.edit;
    logits =
        job.edit < 0 ? LogitsOf(launch, job.row) : launch.edited + job.edit * launch.vocabulary;
    best = LargestOfPieces(launch.best + place * launch.num_pieces, launch.num_pieces);
    all_masked = max() == -__builtin_inff();
  }
  __device__ float max() const { return logits[IdOf(best)]; }
};

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

// function(place, logit) for this thread's share of a piece, ids rising.
template <typename Function>
__device__ __forceinline__ void ForEachHeld(const float* logits, const VocabularyPiece& piece,
                                            const Function& function) {
  float held[kHeldIds];
#pragma unroll
  for (int i = 0; i < kHeldIds; ++i) {
    const int place = static_cast<int>(threadIdx.x) + i * kPieceThreads;
    held[i] = place < piece.count ? logits[piece.begin + place] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kHeldIds; ++i) {
    const int place = static_cast<int>(threadIdx.x) + i * kPieceThreads;
    if (place < piece.count) function(place, held[i]);
  }
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_SAMPLING_PIECES_H_
