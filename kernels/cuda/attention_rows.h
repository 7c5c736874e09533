// What decode and prefill attention have in common: some query rows of one sequence and one KV head
// over a run of segments, by one block of threads. The order of every sum is the class `fma`'s
// (docs/numerics.md, Attention): it is what the CPU does, sixteen lanes or not.
//
// Two tiles of 64 positions at a time:
//
//   scores    thread = position: D products in order, for every row
//   softmax   warp = row: lanes hold two positions of either tile
//   values    thread = one or two numbers of the output, all or half of the rows: 128 products in
//             order, a tile after the other
//
// K and V come through a ring in shared memory by asynchronous copies, a unit at a time: K of two
// tiles, V of them, K of the next two; while one is used the next is on its way.
//
// The running softmax is Milakov and Gimelshein's (2018), tiles of a sequence are paged as Kwon et
// al. have them (SOSP 2023).

#ifndef TANDEM_KERNELS_CUDA_ATTENTION_ROWS_H_
#define TANDEM_KERNELS_CUDA_ATTENTION_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_jobs.h"
#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/vector_math.h"

namespace tandem {

inline constexpr int kAttentionThreads = 128;
// Two tiles.
inline constexpr int kPairTokens = 2 * kAttentionTileTokens;
inline constexpr int kPairSubTiles = kPairTokens / kKvSubTileTokens;
static_assert(kPairTokens == kAttentionThreads);

// Sub-tiles lie so far apart that sixteen positions of one and of the next are in different banks.
template <typename Kv>
__host__ __device__ constexpr int SubTileStride(int head_dim) {
  return Kv::SubTileBytes(head_dim) + Kv::kRingPadBytes;
}
template <typename Kv>
__host__ __device__ constexpr int UnitBytes(int head_dim) {
  return kPairSubTiles * SubTileStride<Kv>(head_dim);
}
// So many rows fit a thread's registers beside the rest.
__host__ __device__ constexpr int MaxAttentionRows(int max_head_dim) {
  return max_head_dim > kAttentionThreads ? 8 : 16;
}
// So many blocks of threads are to fit a processor, as far as registers decide.
template <typename Kv>
constexpr int AttentionBlocks(int rows, int max_head_dim) {
  if (max_head_dim > kAttentionThreads) return 1;
  return Kv::kType != KvType::kBF16 || rows > 8 ? 2 : 3;
}

// Heads have at most kMaxHeadDim numbers; kExact: as many, which saves instructions.
template <typename Kv, int kRows, int kMaxHeadDim, bool kExact>
class AttentionRows {
 public:
  static constexpr int kP = Kv::kP;
  using Unit = Kv::Unit;
  // Numbers of the output a thread has, and how many parts the rows are cut into for that.
  static constexpr int kDims =
      kMaxHeadDim > kAttentionThreads ? kMaxHeadDim / kAttentionThreads : 1;
  static constexpr int kRowParts =
      kMaxHeadDim < kAttentionThreads ? kAttentionThreads / kMaxHeadDim : 1;
  static constexpr int kPartRows = kRows / kRowParts;
  static_assert(kRows % 2 == 0 && kRows % kRowParts == 0 && kMaxHeadDim >= 64);

  // Queries, scores, weights, numbers of rows, and a ring of so many units.
  static constexpr size_t BytesWith(int units, int head_dim) {
    return RingBegin() + static_cast<size_t>(units) * UnitBytes<Kv>(head_dim);
  }
  // Where a block may have `most`. Large heads, and small memories, leave room for one unit
  // alone: nothing is copied while it is used.
  static constexpr size_t SharedBytes(int head_dim, size_t most) {
    const bool two = UnitBytes<Kv>(head_dim) <= 72 * 1024 && BytesWith(2, head_dim) <= most;
    return BytesWith(two ? 2 : 1, head_dim);
  }

  __device__ AttentionRows(const AttentionProblem& problem, const RowJob& job)
      : problem_(problem),
        job_(job),
        head_dim_(problem.kv.shape.head_dim),
        group_(problem.num_heads / problem.kv.num_kv_heads),
        blocks_(problem.block_table + job.sequence * problem.max_blocks),
        first_visible_(FirstVisibleOf(0)),
        num_visible_(VisibleOf(job.num_rows - 1)),
        all_see_from_(FirstVisibleOf(job.num_rows - 1)),
        all_see_to_(VisibleOf(0)),
        thread_(threadIdx.x),
        queries_(SharedCast<float>(SharedMemory())),
        scores_(queries_ + kRows * kMaxHeadDim),
        weights_(scores_ + kRows * kPairTokens),
        max_(weights_ + kRows * kPairTokens),
        sum_(max_ + kRows),
        rescale_(sum_ + kRows),
        total_max_(rescale_ + 2 * kRows),
        total_sum_(total_max_ + kRows),
        left_scale_(total_sum_ + kRows),
        right_scale_(left_scale_ + kRows),
        ring_(SharedMemory() + RingBegin()),
        has_two_units_(SharedMemoryBytes() >= BytesWith(2, head_dim())) {}

  __device__ int first_segment() const { return first_visible_ / kAttentionSegmentTokens; }
  __device__ int end_segment() const {
    return (num_visible_ + kAttentionSegmentTokens - 1) / kAttentionSegmentTokens;
  }

  // Segments [begin, end), merged left to right. If `whole`, they are all that the rows see, and
  // the output is written; else there is one segment, and its parts go to partials [row] and
  // accumulators [row, D'].
  __device__ void Run(int begin, int end, bool whole, RowPartial* partials, float* accumulators) {
    LoadQueries();
    float total[kPartRows][kDims];
    for (int segment = begin; segment < end; ++segment) {
      float acc[kPartRows][kDims] = {};
      Segment(segment, &acc);
      if (!whole) {
        StorePartial(acc, partials, accumulators);
      } else if (segment == begin) {
        TakeFirst(acc, &total);
      } else {
        Merge(acc, &total);
      }
    }
    if (whole) Finish(total);
  }

 private:
  static constexpr uint32_t kFullWarp = 0xFFFFFFFFu;

  static constexpr size_t RingBegin() {
    return (sizeof(float) * kRows * (kMaxHeadDim + 2 * kPairTokens + 8) + 63) / 64 * 64;
  }

  __device__ int head_dim() const {
    if constexpr (kExact) return kMaxHeadDim;
    return head_dim_;
  }
  __device__ int padded() const { return PaddedHeadDim(head_dim()); }

  // A row sees positions [FirstVisibleOf, VisibleOf).
  __device__ int VisibleOf(int row) const {
    return job_.num_cached + (job_.first_row + row) / group_ + 1;
  }
  __device__ int FirstVisibleOf(int row) const {
    return static_cast<int>(FirstVisible(VisibleOf(row), problem_.window));
  }
  // Where the row is in query and output.
  __device__ int64_t ElementOf(int row) const {
    const int64_t token = job_.query_start + (job_.first_row + row) / group_;
    const int head = job_.kv_head * group_ + (job_.first_row + row) % group_;
    return (token * problem_.num_heads + head) * head_dim();
  }
  // This thread's part of the rows, and its numbers of the output.
  __device__ int FirstRowOfPart() const { return thread_ / kMaxHeadDim * kPartRows; }
  __device__ int DimOf(int i) const { return thread_ % kMaxHeadDim + i * kAttentionThreads; }

  // [D][row]; rows that are none are zeros, and weigh nothing.
  __device__ void LoadQueries() {
    for (int i = thread_; i < kRows * kPairTokens; i += kAttentionThreads) weights_[i] = 0.0f;
    for (int row = 0; row < kRows; ++row) {
      const bool there = row < job_.num_rows;
      const int64_t from = there ? ElementOf(row) : 0;
      for (int d = thread_; d < head_dim(); d += kAttentionThreads) {
        queries_[d * kRows + row] = there ? Load(Kv::kDType, problem_.query, from + d) : 0.0f;
      }
    }
  }

  // ---- the ring ----

  // A sub-tile of a unit.
  __device__ SharedPtr<std::byte> SubTile(int unit, int sub) const {
    return ring_ + (has_two_units_ ? unit % 2 : 0) * UnitBytes<Kv>(head_dim()) +
           sub * SubTileStride<Kv>(head_dim());
  }
  // Where tokens have scales: a position of a unit of K has its own there, and that of V.
  __device__ float TokenScale(int unit, int at, bool is_value) const {
    const int scales = Kv::NumberBytes(head_dim()) + (is_value ? Kv::kScaleBytes : 0);
    return SharedCast<float>(SubTile(unit, at / kKvSubTileTokens) + scales)[at % kKvSubTileTokens];
  }

  // A warp copies two sub-tiles. Those without a visible position are zeros: their scores are
  // masked, and they are no part of a sum.
  __device__ void CopyUnit(int unit, int pair) const {
    const bool is_value = unit % 2 == 1;
    const int bytes = Kv::SubTileBytes(head_dim());
    const int tile = (is_value ? problem_.kv.num_kv_heads : 0) + job_.kv_head;
    const int block_tokens = problem_.kv.shape.block_tokens;
#pragma unroll
    for (int i = 0; i < kPairSubTiles; i += kAttentionThreads / 32) {
      const int sub = i + thread_ / 32;
      const int position = pair + sub * kKvSubTileTokens;
      const bool there = position < num_visible_ && position + kKvSubTileTokens > first_visible_;
      const std::byte* from = problem_.kv.base;
      if (there) {
        const int block = position / block_tokens;
        from = SubTileAt<Kv>(problem_.kv, blocks_[block], position - block * block_tokens, tile);
      }
      const int lane = thread_ % 32 * 16;
      const SharedPtr<std::byte> to = SubTile(unit, sub) + lane;
#pragma unroll 8
      for (int at = 0; at < bytes; at += 32 * 16) {
        if (at + lane < bytes) CopyAsync16(to + at, from + lane + at, there);
      }
      if constexpr (Kv::kHasTokenScales) {
        // Weights are multiplied with the scales of V before that is there.
        if (!is_value && lane < Kv::kScaleBytes) {
          const size_t to_values =
              static_cast<size_t>(problem_.kv.num_kv_heads) * problem_.kv.tile_bytes;
          const std::byte* const scales =
              there ? from + to_values + Kv::NumberBytes(head_dim()) : from;
          CopyAsync16(to + bytes, scales + lane, there);
        }
      }
    }
  }

  __device__ void Segment(int segment, float (*acc)[kPartRows][kDims]) {
    const int segment_begin = segment * kAttentionSegmentTokens;
    int begin = first_visible_ / kAttentionTileTokens * kAttentionTileTokens;
    begin = begin > segment_begin ? begin : segment_begin;
    int end = segment_begin + kAttentionSegmentTokens;
    end = end < num_visible_ ? end : num_visible_;
    for (int row = thread_; row < kRows; row += kAttentionThreads) {
      max_[row] = -__builtin_inff();
      sum_[row] = 0.0f;
    }
    const int tokens = end > begin ? end - begin : 0;
    const int num_units = (tokens + kPairTokens - 1) / kPairTokens * 2;
    const bool ahead = has_two_units_;
    const auto copy = [&](int unit) {
      if (unit < num_units) CopyUnit(unit, begin + unit / 2 * kPairTokens);
      CommitCopies();
    };
    if (ahead) copy(0);  // Everybody has left it: a segment ends with an odd unit.
    for (int unit = 0; unit < num_units; ++unit) {
      if (!ahead) {
        __syncthreads();
        copy(unit);
      }
      WaitForCopies<0>();
      __syncthreads();
      if (ahead) copy(unit + 1);  // Where the unit before this one was.
      const int pair = begin + unit / 2 * kPairTokens;
      if (unit % 2 == 0) {
        Scores(unit, pair);
        __syncthreads();
        Softmax(unit, pair, end);
      } else {
        AddValues(unit, pair, end, acc);
      }
    }
  }

  // ---- two tiles ----

  __device__ void Scores(int unit, int pair) {
    const int at = pair + thread_;
    const SharedPtr<std::byte> k = SubTile(unit, thread_ / kKvSubTileTokens);
    float acc[kRows] = {};
    const int num_units = head_dim() / kP;
#pragma unroll 8
    for (int i = 0; i < num_units; ++i) {
      const Unit numbers = Kv::Key(k, thread_ % kKvSubTileTokens, i);
      float q[kP][kRows];
#pragma unroll
      for (int p = 0; p < kP; ++p) LoadFloats(queries_ + (i * kP + p) * kRows, &q[p]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        acc[r] = AddProducts<Kv>(acc[r], numbers, q[0][r], q[kP - 1][r]);
      }
    }
    if constexpr (Kv::kHasTokenScales) {
      const float scale = TokenScale(unit, thread_, /*is_value=*/false);
#pragma unroll
      for (int r = 0; r < kRows; ++r) acc[r] = acc[r] * scale;
    }
    const bool all_see = pair >= all_see_from_ && pair + kPairTokens <= all_see_to_;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= job_.num_rows) break;
      float score = acc[r] * problem_.softmax_scale;
      if (problem_.score_cap != 0.0f) score = SoftCap(score, problem_.score_cap);
      const bool seen = all_see || (at < VisibleOf(r) && at >= FirstVisibleOf(r));
      scores_[r * kPairTokens + thread_] = seen ? score : -__builtin_inff();
    }
  }

  // kCount neighbours, at once as far as that goes.
  template <int kCount>
  __device__ static void LoadFloats(SharedPtr<float> from, float (*to)[kCount]) {
    if constexpr (kCount % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 four = SharedCast<float4>(from + i)[0];
        (*to)[i] = four.x;
        (*to)[i + 1] = four.y;
        (*to)[i + 2] = four.z;
        (*to)[i + 3] = four.w;
      }
    } else if constexpr (kCount == 2) {
      const float2 two = SharedCast<float2>(from)[0];
      (*to)[0] = two.x;
      (*to)[1] = two.y;
    } else {
      static_assert(kCount == 1);
      (*to)[0] = from[0];
    }
  }

  // From scores to weights exp(score − max), as they multiply V, [token][row]; the new maximum and
  // sum, a tile after the other. Of `unit`, of K, are the scales of tokens.
  __device__ void Softmax(int unit, int pair, int end) {
    const int lane = thread_ % 32;
    for (int row = thread_ / 32; row < job_.num_rows; row += kAttentionThreads / 32) {
      float max = max_[row];
      float sum = sum_[row];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int first = tile * kAttentionTileTokens;
        if (pair + first >= end) break;
        const float a = scores_[row * kPairTokens + first + lane];
        const float b = scores_[row * kPairTokens + first + lane + 32];
        const float before = max;
        max = a > max ? a : max;
        max = b > max ? b : max;
        for (int step = 16; step > 0; step /= 2) {
          const float other = __shfl_xor_sync(kFullWarp, max, step);
          max = other > max ? other : max;
        }
        const bool none = max == -__builtin_inff();
        float weight_a = none ? 0.0f : Exp(a - max);
        float weight_b = none ? 0.0f : Exp(b - max);
        weights_[(first + lane) * kRows + row] = Weight(unit, first + lane, &weight_a);
        weights_[(first + lane + 32) * kRows + row] = Weight(unit, first + lane + 32, &weight_b);
        // Lane i of sixteen adds positions i, i + 16, i + 32 and i + 48.
        const float upper_a = __shfl_down_sync(kFullWarp, weight_a, 16);
        const float upper_b = __shfl_down_sync(kFullWarp, weight_b, 16);
        const float tile_sum = SumOfLanes(((weight_a + upper_a) + weight_b) + upper_b);
        const float rescale = none ? 1.0f : Exp(before - max);
        if (!none) sum = sum * rescale + tile_sum;
        if (lane == 0) rescale_[tile * kRows + row] = rescale;
      }
      __syncwarp();  // All lanes have read them.
      if (lane == 0) {
        max_[row] = max;
        sum_[row] = sum;
      }
    }
  }

  __device__ static float Rounded(float x) {
    if constexpr (Kv::kDType == DType::kBF16) return ToFloat(ToBfloat16(x));
    return x;
  }
  // What multiplies V at a position of the pair, of a weight, which becomes what is summed: the
  // same, but where tokens have scales. A weight of zero is zero, whatever the scale of a slot that
  // no token wrote.
  __device__ float Weight(int unit, int at, float* weight) const {
    if constexpr (Kv::kHasTokenScales) {
      if (*weight == 0.0f) return 0.0f;
      return Rounded(*weight * TokenScale(unit, at, /*is_value=*/true));
    } else {
      *weight = Rounded(*weight);
      return *weight;
    }
  }

  __device__ void AddValues(int unit, int pair, int end, float (*acc)[kPartRows][kDims]) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      if (pair + tile * kAttentionTileTokens >= end) break;
      const SharedPtr<float> rescale = rescale_ + tile * kRows + FirstRowOfPart();
#pragma unroll
      for (int r = 0; r < kPartRows; ++r) {
        if (FirstRowOfPart() + r >= job_.num_rows) break;
#pragma unroll
        for (int i = 0; i < kDims; ++i) (*acc)[r][i] = (*acc)[r][i] * rescale[r];
      }
#pragma unroll 1
      for (int sub = 0; sub < kAttentionSubTiles; ++sub) {
        const int token = tile * kAttentionTileTokens + sub * kKvSubTileTokens;
        const int position = pair + token;
        if (position >= end) break;
        if (position + kKvSubTileTokens <= first_visible_) continue;
        const SharedPtr<std::byte> v = SubTile(unit, token / kKvSubTileTokens);
        if (position + kKvSubTileTokens <= end) {
          AddSubTile<true>(v, token, kKvSubTileTokens, acc);
        } else {
          AddSubTile<false>(v, token, end - position, acc);
        }
      }
    }
  }

  static constexpr int kAttentionSubTiles = kAttentionTileTokens / kKvSubTileTokens;
  static constexpr int kSubTileUnits = kKvSubTileTokens / kP;

  // `tokens` tokens from `token` of the pair on; kAll: the whole sub-tile. Slots behind the last
  // visible position were never written, or are stale.
  template <bool kAll>
  __device__ void AddSubTile(SharedPtr<std::byte> v, int token, int tokens,
                             float (*acc)[kPartRows][kDims]) {
    Unit numbers[kSubTileUnits][kDims];
#pragma unroll
    for (int unit = 0; unit < kSubTileUnits; ++unit) {
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const bool there = DimOf(i) < padded() && (kAll || unit * kP < tokens);
        numbers[unit][i] = there ? Kv::Value(v, unit, DimOf(i), padded()) : Unit{};
        if (!kAll && kP == 2 && unit * kP + 1 == tokens) {
          numbers[unit][i] = Kv::OnlyFirst(numbers[unit][i]);
        }
      }
    }
#pragma unroll
    for (int unit = 0; unit < kSubTileUnits; ++unit) {
      if (!kAll && unit * kP >= tokens) break;
      const SharedPtr<float> weights = weights_ + (token + unit * kP) * kRows + FirstRowOfPart();
      float first[kPartRows];
      float second[kPartRows] = {};
      LoadFloats(weights, &first);
      // The token behind the last one of an odd number is none: zero, whatever was there.
      if (kP == 2 && (kAll || unit * kP + 1 < tokens)) LoadFloats(weights + kRows, &second);
#pragma unroll
      for (int r = 0; r < kPartRows; ++r) {
#pragma unroll
        for (int i = 0; i < kDims; ++i) {
          (*acc)[r][i] = AddProducts<Kv>((*acc)[r][i], numbers[unit][i], first[r], second[r]);
        }
      }
    }
  }

  // ---- parts ----

  __device__ void TakeFirst(const float (&acc)[kPartRows][kDims],
                            float (*total)[kPartRows][kDims]) {
#pragma unroll
    for (int r = 0; r < kPartRows; ++r) {
#pragma unroll
      for (int i = 0; i < kDims; ++i) (*total)[r][i] = acc[r][i];
    }
    for (int row = thread_; row < kRows; row += kAttentionThreads) {
      total_max_[row] = max_[row];
      total_sum_[row] = sum_[row];
    }
    __syncthreads();
  }

  __device__ void Merge(const float (&acc)[kPartRows][kDims], float (*total)[kPartRows][kDims]) {
    for (int row = thread_; row < kRows; row += kAttentionThreads) {
      const float left = total_max_[row];
      const float right = max_[row];
      const float max = right > left ? right : left;
      const bool none = max == -__builtin_inff();
      const float left_scale = none ? 1.0f : Exp(left - max);
      const float right_scale = none ? 0.0f : Exp(right - max);
      total_max_[row] = max;
      if (!none) total_sum_[row] = total_sum_[row] * left_scale + sum_[row] * right_scale;
      left_scale_[row] = left_scale;
      right_scale_[row] = right_scale;
    }
    __syncthreads();
    const int first_row = FirstRowOfPart();
#pragma unroll
    for (int r = 0; r < kPartRows; ++r) {
      const float left_scale = left_scale_[first_row + r];
      const float right_scale = right_scale_[first_row + r];
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        (*total)[r][i] = (*total)[r][i] * left_scale + acc[r][i] * right_scale;
      }
    }
  }

  __device__ void Finish(const float (&total)[kPartRows][kDims]) const {
    const int first_row = FirstRowOfPart();
#pragma unroll
    for (int r = 0; r < kPartRows; ++r) {
      const int row = first_row + r;
      if (row >= job_.num_rows) break;
      const float sum = total_sum_[row];
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = DimOf(i);
        // Adding 0 makes a zero positive: how it underflowed may depend on masked positions.
        if (d < head_dim()) {
          Store(Kv::kDType, problem_.output, ElementOf(row) + d, total[r][i] / sum + 0.0f);
        }
      }
    }
  }

  __device__ void StorePartial(const float (&acc)[kPartRows][kDims], RowPartial* partials,
                               float* accumulators) const {
    const int first_row = FirstRowOfPart();
#pragma unroll
    for (int r = 0; r < kPartRows; ++r) {
      const int row = first_row + r;
      if (row >= job_.num_rows) break;
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        if (DimOf(i) < padded()) accumulators[row * padded() + DimOf(i)] = acc[r][i];
      }
    }
    for (int row = thread_; row < job_.num_rows; row += kAttentionThreads) {
      partials[row] = RowPartial{max_[row], sum_[row]};
    }
  }

  const AttentionProblem& problem_;
  const RowJob job_;
  const int head_dim_;
  const int group_;
  const int32_t* const blocks_;
  const int first_visible_;  // the least of all rows
  const int num_visible_;    // the most
  const int all_see_from_;   // Positions from here
  const int all_see_to_;     // to here are seen by every row.
  const int thread_;
  const SharedPtr<float> queries_;  // [D][kRows]
  const SharedPtr<float> scores_;   // [kRows][128]
  const SharedPtr<float> weights_;  // [128][kRows]
  const SharedPtr<float> max_;      // [kRows] each, but rescale_ [2][kRows]
  const SharedPtr<float> sum_;
  const SharedPtr<float> rescale_;
  const SharedPtr<float> total_max_;
  const SharedPtr<float> total_sum_;
  const SharedPtr<float> left_scale_;
  const SharedPtr<float> right_scale_;
  const SharedPtr<std::byte> ring_;
  const bool has_two_units_;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_ATTENTION_ROWS_H_
