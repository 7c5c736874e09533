// Sub-tiles of a paged sequence on their way to tensor cores, and segments that become one: what
// decode and prefill have in common besides TensorRows.

#ifndef TANDEM_KERNELS_CUDA_TENSOR_TILES_H_
#define TANDEM_KERNELS_CUDA_TENSOR_TILES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/tensor_rows.h"

namespace tandem {

// From a sub-tile of K to that of V.
__device__ __forceinline__ size_t ToValues(const HostKvLayerView& kv) {
  return static_cast<size_t>(kv.num_kv_heads) * kv.tile_bytes;
}

// Where a sequence's sub-tiles of one KV head are, from the one with `position` on.
class SubTiles {
 public:
  __device__ SubTiles(const AttentionProblem& problem, const RowJob& job, int position)
      : problem_(problem),
        kv_head_(job.kv_head),
        block_tokens_(problem.kv.shape.block_tokens),
        index_(position / block_tokens_),
        offset_(position - index_ * block_tokens_) {}

  // So many positions on.
  __device__ void Advance(int tokens) {
    for (offset_ += tokens; offset_ >= block_tokens_; offset_ -= block_tokens_) ++index_;
  }
  __device__ int index() const { return index_; }  // in the block table
  // The sub-tile of K, in `block`.
  template <typename Kv>
  __device__ const std::byte* In(int block) const {
    return SubTileAt<Kv>(problem_.kv, block, offset_, kv_head_);
  }

 private:
  const AttentionProblem& problem_;
  const int kv_head_;
  const int block_tokens_;
  int index_;
  int offset_;
};

// A sub-tile by kThreads threads, or zeros where no row of the job sees any of it.
template <typename Tile, int kThreads>
__device__ __forceinline__ void CopySubTile(const std::byte* from, bool there, bool is_value,
                                            int thread, SharedPtr<std::byte> to) {
#pragma unroll
  for (int i = 0; i < Tile::kPieces; i += kThreads) {
    const int piece = i + thread;
    if (Tile::kPieces % kThreads != 0 && piece >= Tile::kPieces) break;
    CopyAsync16(to + Tile::PieceAt(is_value, piece), from + piece * 16, there);
  }
}

// Whether any row that sees positions [first_visible, end) sees some of a sub-tile.
__device__ __forceinline__ bool SeesSubTile(int position, int first_visible, int end) {
  return position < end && position + kKvSubTileTokens > first_visible;
}

// Scales of two parts that become one, by powers of two.
struct MergeScales {
  float max;
  float left;
  float right;
};
__device__ __forceinline__ MergeScales ScalesOf(float left, float right) {
  const float max = right > left ? right : left;
  const bool none = max == -__builtin_inff();
  return {max, none ? 1.0f : PowerOfTwo(left - max), none ? 0.0f : PowerOfTwo(right - max)};
}

// Positions that some row of a job sees, [first, end); `begin` is where their first tile begins.
struct SeenByJob {
  int begin;
  int first;
  int end;
  __device__ SeenByJob(const AttentionProblem& problem, const RowJob& job) {
    const int group = problem.num_heads / problem.kv.num_kv_heads;
    end = job.num_cached + (job.first_row + job.num_rows - 1) / group + 1;
    first =
        static_cast<int>(FirstVisible(job.num_cached + job.first_row / group + 1, problem.window));
    begin = first / kAttentionTileTokens * kAttentionTileTokens;
  }
};

// What rows had of the segments before, in memory of the block's: [block, thread's runs, then their
// maxima and sums, thread].
template <typename Rows, int kThreads>
class SegmentTotals {
 public:
  static constexpr int kRuns = Rows::kRowsOfLane * Rows::kSteps;
  static_assert(Rows::kRowsOfLane == 2);

  __device__ explicit SegmentTotals(float4* all)
      : numbers_(all + int64_t{blockIdx.x} * (kRuns + 1) * kThreads + threadIdx.x) {}

  // Rows have a segment; now they have all up to its end, if something was kept.
  __device__ __forceinline__ void MergeInto(Rows* rows) const {
    if (!any_) return;
    const float4 before = numbers_[kRuns * kThreads];
    const float max[2] = {before.x, before.y};
    const float sum[2] = {before.z, before.w};
    MergeScales scales[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales[i] = ScalesOf(max[i], rows->max(i));
      rows->Set(i, scales[i].max, sum[i] * scales[i].left + rows->sum(i) * scales[i].right);
    }
    rows->ForEachRun([&](int i, int run, float4& four) {
      const float4 left = numbers_[(i * Rows::kSteps + run) * kThreads];
      four.x = left.x * scales[i].left + four.x * scales[i].right;
      four.y = left.y * scales[i].left + four.y * scales[i].right;
      four.z = left.z * scales[i].left + four.z * scales[i].right;
      four.w = left.w * scales[i].left + four.w * scales[i].right;
    });
  }
  __device__ __forceinline__ void Keep(Rows* rows) {
    rows->ForEachRun([&](int i, int run, const float4& four) {
      numbers_[(i * Rows::kSteps + run) * kThreads] = four;
    });
    numbers_[kRuns * kThreads] =
        make_float4(rows->max(0), rows->max(1), rows->sum(0), rows->sum(1));
    any_ = true;
  }

 private:
  float4* const numbers_;
  bool any_ = false;
};

// function.template operator()<Kv>() for KV that the tensor cores compute with.
template <typename Function>
auto ByTensorKv(KvType type, Function function) {
  if (type == KvType::kInt8) return function.template operator()<Int8Kv>();
  if (type == KvType::kFp8) return function.template operator()<Fp8Kv>();
  if (type == KvType::kInt8G8) return function.template operator()<GroupedKv>();
  return function.template operator()<Bf16Kv>();
}

// function.template operator()<Kind>() for rows that there are kernels for.
template <bool kOneToken, typename Args, typename Function>
auto ByKind(const Args& args, Function function) {
  const int head_dim = args.kv.shape.head_dim;
  return ByTensorKv(args.kv.shape.type, [&]<typename Kv>() {
    const auto by_head_dim = [&]<bool kCapped>() {
      if (head_dim == 64) {
        return function.template operator()<RowKind<Kv, 64, kOneToken, kCapped>>();
      }
      if (head_dim == 96) {
        return function.template operator()<RowKind<Kv, 96, kOneToken, kCapped>>();
      }
      return function.template operator()<RowKind<Kv, 128, kOneToken, kCapped>>();
    };
    return args.score_cap == 0.0f ? by_head_dim.template operator()<false>()
                                  : by_head_dim.template operator()<true>();
  });
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_TENSOR_TILES_H_
