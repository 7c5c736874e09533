// Attention on the tensor cores: query rows of one sequence and one KV head, sixteen to a product,
// by one warp. Decode and prefill attention have it in common, and so a row's bits.
//
// The order is that of docs/numerics.md (tiles of 64 positions, segments of 1,024, left to right),
// but for three things. Products are summed as the tensor cores do it. exp is 2^x by fused
// multiply-adds. And what scores are taken relative to is not their maximum but the next whole
// number in base 2: so accumulators are rescaled by powers of two, which rounds nothing.
//
// K and V are read as they lie in their tiles (tensor_kv.h). Which of a product's inputs are which
// is ours to choose, as its sum has no order: a lane's scores of sixteen positions are, as they
// are, what it gives the product with V (Dao, FlashAttention-2, 2023).

#ifndef TANDEM_KERNELS_CUDA_TENSOR_ROWS_H_
#define TANDEM_KERNELS_CUDA_TENSOR_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cuda/attention_jobs.h"
#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/tensor_kv.h"
#include "kernels/support/vector_math.h"

namespace tandem {

// 2^x for x <= 0, within 4e-7 of it; 0 below −125; a NaN of a NaN. Coefficients fit (2^r − 1) / r
// at the Chebyshev nodes of |r| <= ½.
__device__ __forceinline__ float Exp2(float x) {
  constexpr float kRound = kRoundFloat + 127.0f;  // So that a sum's low bits are an exponent.
  const float shifted = x + kRound;
  const float r = x - (shifted - kRound);
  float y = __fmaf_rn(r, 0x1.5ec866p-10f, 0x1.3cbf6p-7f);
  y = __fmaf_rn(r, y, 0x1.c6afeep-5f);
  y = __fmaf_rn(r, y, 0x1.ebfa4cp-3f);
  y = __fmaf_rn(r, y, 0x1.62e43p-1f);
  y = __fmaf_rn(r, y, 1.0f);
  y = y * __uint_as_float(__float_as_uint(shifted) << 23);
  return x < -125.0f ? 0.0f : y;
}

// 2^x of a whole x <= 0, or of −infinity; 0 below −126.
__device__ __forceinline__ float PowerOfTwo(float x) {
  return x < -126.0f ? 0.0f
                     : __uint_as_float(static_cast<uint32_t>(static_cast<int>(x) + 127) << 23);
}

// Rows of one product.
inline constexpr int kTensorRows = 16;

// Where a lane's four numbers of the run-th sixteen begin.
__device__ __forceinline__ int DimOf(int run) {
  return run * 16 + static_cast<int>(threadIdx.x) % 4 * 4;
}

// What is known of all rows when a kernel is compiled: so it has no code for what does not come.
template <typename KvKind, int kHeadNumbers, bool kIsOneToken, bool kHasCap>
struct RowKind {
  using Kv = KvKind;
  static constexpr int kHeadDim = kHeadNumbers;
  static constexpr bool kOneToken = kIsOneToken;  // of each sequence
  static constexpr bool kCapped = kHasCap;        // AttentionProblem::score_cap is not 0.
};

// Scores of rows with the keys of a tile, or of so many sub-tiles, and the weights they become. Row
// i is row first_row + i of the job.
template <typename Kind, int kNumSubTiles = kAttentionTileTokens / kKvSubTileTokens>
class TensorScores {
 public:
  static constexpr int kHeadDim = Kind::kHeadDim;
  using Kv = Kind::Kv;
  using Tile = TensorKv<Kv, kHeadDim>;
  static_assert(kHeadDim % 32 == 0);
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kSubTiles = kNumSubTiles;
  static constexpr int kRowsOfLane = 2;

  __device__ TensorScores(const AttentionProblem& problem, const RowJob& job, int first_row)
      : problem_(problem),
        job_(job),
        first_row_(first_row),
        group_(problem.num_heads / problem.kv.num_kv_heads),
        scale_(problem.softmax_scale * kLog2E) {}

  __device__ int VisibleOf(int row) const {
    const int of_job = job_.first_row + first_row_ + row;
    return job_.num_cached + (Kind::kOneToken ? 0 : of_job / group_) + 1;
  }
  __device__ int FirstVisibleOf(int row) const {
    return static_cast<int>(FirstVisible(VisibleOf(row), problem_.window));
  }
  __device__ bool Has(int row) const { return first_row_ + row < job_.num_rows; }
  // Where the row is in query and output.
  __device__ int64_t ElementOf(int row) const {
    const int of_job = job_.first_row + first_row_ + row;
    const int64_t token = job_.query_start + (Kind::kOneToken ? 0 : of_job / group_);
    const int head = job_.kv_head * group_ + (Kind::kOneToken ? of_job : of_job % group_);
    return (token * problem_.num_heads + head) * kHeadDim;
  }
  // The lane's i-th.
  __device__ static int RowOf(int i) { return i * 8 + static_cast<int>(threadIdx.x) % 32 / 4; }

  // What the lane gives products with K. Rows that are none are zeros.
  __device__ uint4 Query(int step) const {
    const int lane = threadIdx.x % 32;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = RowOf(i % 2);
      const auto* const from = static_cast<const Bfloat16*>(problem_.query);
      words[i] = Has(row) ? *reinterpret_cast<const uint32_t*>(from + ElementOf(row) + step * 16 +
                                                               i / 2 * 8 + lane % 4 * 2)
                          : 0;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  // Scores of the tile's sub-tile `sub`; queries(step) is what Query gave.
  template <typename Queries>
  __device__ void Scores(SharedPtr<std::byte> k, int sub, const Queries& queries) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores_[sub * 2][i] = scores_[sub * 2 + 1][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const LanePairs keys = Tile::Keys(k, step);
      const uint4 q = queries(step);
      const uint32_t a[4] = {q.x, q.y, q.z, q.w};
      MmaBf16(scores_[sub * 2], a, keys.even);
      MmaBf16(scores_[sub * 2 + 1], a, keys.odd);
    }
    if constexpr (Kv::kHasTokenScales) {
      const float4 four = SharedCast<float4>(k + Tile::kScalesAt)[SumLane()];
      const float scales[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // Row i / 4; as PositionOf has it.
        float& score = scores_[sub * 2 + i % 2][i / 2];
        score = score * scales[i % 4];
      }
    }
  }

  // Scores are scaled, capped and masked; the largest of each row. Code for masks is apart, as
  // most tiles have none.
  __device__ void Prepare(int first_position, bool masked, float (&largest)[kRowsOfLane]) {
    if constexpr (Kind::kCapped) {
      Cap();
      Scale<true>(first_position, kLog2E, largest);
    } else if (Kind::kOneToken || masked) {
      Scale<true>(first_position, scale_, largest);
    } else {
      Scale<false>(first_position, scale_, largest);
    }
  }

  // A lane's scores, to be had again: [kParked, lane].
  static constexpr int kParked = 2 * kSubTiles;
  __device__ void Park(SharedPtr<float4> to) const {
#pragma unroll
    for (int n = 0; n < kParked; ++n) {
      to[n * 32] = make_float4(scores_[n][0], scores_[n][1], scores_[n][2], scores_[n][3]);
    }
  }
  __device__ void Unpark(SharedPtr<float4> from) {
#pragma unroll
    for (int n = 0; n < kParked; ++n) {
      const float4 four = from[n * 32];
      scores_[n][0] = four.x;
      scores_[n][1] = four.y;
      scores_[n][2] = four.z;
      scores_[n][3] = four.w;
    }
  }
  __device__ void CopyScores(const TensorScores& from) {
#pragma unroll
    for (int n = 0; n < kParked; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores_[n][i] = from.scores_[n][i];
    }
  }

  // The lane's of its i-th row with sub-tile `sub`: four positions in a row.
  __device__ float4 FourOf(int sub, int i) const {
    const float(&even)[4] = scores_[sub * 2];
    const float(&odd)[4] = scores_[sub * 2 + 1];
    return make_float4(even[i * 2], odd[i * 2], even[i * 2 + 1], odd[i * 2 + 1]);
  }
  __device__ void SetFour(int sub, int i, const float4& four) {
    scores_[sub * 2][i * 2] = four.x;
    scores_[sub * 2 + 1][i * 2] = four.y;
    scores_[sub * 2][i * 2 + 1] = four.z;
    scores_[sub * 2 + 1][i * 2 + 1] = four.w;
  }

  // From scores of the lane's i-th row to weights, relative to `max`; their sum. Where all scores
  // are −infinity, so is it, and weights are 0. Where tokens have scales, those of V are still to
  // come: weights stay in the scores' place, and are not rounded.
  __device__ __forceinline__ float Weigh(int i, float max) {
    const float from = max == -__builtin_inff() ? 0.0f : max;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 2 * kSubTiles; n += 2) {
      float weights[4];  // of four positions in a row
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float score = scores_[n + e % 2][i * 2 + e / 2];
        weights[e] = Exp2(score - from);
      }
      if constexpr (Kv::kHasTokenScales) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores_[n + e % 2][i * 2 + e / 2] = weights[e];
          sum = sum + weights[e];
        }
        continue;
      }
      const uint32_t first = PackBf16(weights[0], weights[1]);
      const uint32_t second = PackBf16(weights[2], weights[3]);
      sum = sum + FirstOf(first);
      sum = sum + SecondOf(first);
      sum = sum + FirstOf(second);
      sum = sum + SecondOf(second);
      weights_[n / 2][i] = first;
      weights_[n / 2][i + 2] = second;
    }
    sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  }
  // What the lane gives products with V, of sub-tile `sub`. `scales` are those of its tokens in V,
  // if they have some. A weight of zero is zero, whatever the scale of a slot that no token wrote.
  __device__ void GetWeights(int sub, SharedPtr<float> scales, uint32_t (&weights)[4]) const {
    if constexpr (Kv::kHasTokenScales) {
      const float4 of_tokens = SharedCast<float4>(scales)[SumLane()];
      const auto scaled = [](float weight, float scale) {
        return weight == 0.0f ? 0.0f : weight * scale;
      };
#pragma unroll
      for (int i = 0; i < kRowsOfLane; ++i) {
        const float(&even)[4] = scores_[sub * 2];
        const float(&odd)[4] = scores_[sub * 2 + 1];
        weights[i] = PackBf16(scaled(even[i * 2], of_tokens.x), scaled(odd[i * 2], of_tokens.y));
        weights[i + 2] =
            PackBf16(scaled(even[i * 2 + 1], of_tokens.z), scaled(odd[i * 2 + 1], of_tokens.w));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[i] = weights_[sub][i];
    }
  }

 protected:
  // The lane's scores: of each sub-tile the even positions, then the odd ones.
  float scores_[2 * kSubTiles][4];

 private:
  __device__ static int PositionOf(int n, int e) {
    return n / 2 * kKvSubTileTokens + static_cast<int>(threadIdx.x) % 4 * 4 + e * 2 + n % 2;
  }
  __device__ void Cap() {
#pragma unroll
    for (int n = 0; n < 2 * kSubTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores_[n][i] = SoftCap(scores_[n][i] * problem_.softmax_scale, problem_.score_cap);
      }
    }
  }

  template <bool kMasked>
  __device__ __forceinline__ void Scale(int first_position, float scale,
                                        float (&largest)[kRowsOfLane]) {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int visible = VisibleOf(RowOf(i));
      const int first_visible = FirstVisibleOf(RowOf(i));
      float max = -__builtin_inff();
#pragma unroll
      for (int n = 0; n < 2 * kSubTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores_[n][i * 2 + e];
          score = score * scale;
          if constexpr (kMasked) {
            const int position = first_position + PositionOf(n, e);
            if (position >= visible || position < first_visible) score = -__builtin_inff();
          }
          max = score > max ? score : max;
        }
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, max, step);
        max = other > max ? other : max;
      }
      largest[i] = max;
    }
  }

  const AttentionProblem& problem_;
  const RowJob& job_;
  const int first_row_;
  const int group_;
  const float scale_;
  uint32_t weights_[kSubTiles][4];
};

// A row's running maximum, a whole number, with a tile's largest score; what it was before is
// rescaled by the power of two that is returned.
__device__ __forceinline__ float Raise(float largest, float* max) {
  const float before = *max;
  const float whole = __builtin_ceilf(largest);
  *max = whole > before ? whole : before;
  return *max == -__builtin_inff() ? 1.0f : PowerOfTwo(before - *max);
}

// Which of V's pairs of positions, of a sub-tile with `tokens` of them, a lane may give products:
// it has pairs 2 · (lane % 4) and the next. Slots behind were never written, or are stale.
struct KeptPairs {
  uint32_t mask[2] = {0xFFFFFFFFu, 0xFFFFFFFFu};
  __device__ explicit KeptPairs(int tokens) {
    if (tokens >= kKvSubTileTokens) return;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int left = tokens - (static_cast<int>(threadIdx.x) % 4 * 2 + p) * 2;
      mask[p] = left >= 2 ? 0xFFFFFFFFu : left == 1 ? 0xFFFFu : 0;
    }
  }
};

// Sixteen dimensions of the output: += weights · V, of the lane's pairs of positions. Those of
// numbers with a scale a token are whole numbers, whatever they are: times zero nothing.
template <typename Kv>
__device__ __forceinline__ void AddProducts(float (&out)[2][4], const uint32_t (&weights)[4],
                                            const LanePairs& values, const KeptPairs& kept) {
  if constexpr (Kv::kHasTokenScales) {
    MmaBf16(out[0], weights, values.even);
    MmaBf16(out[1], weights, values.odd);
  } else {
    const uint32_t even[2] = {values.even[0] & kept.mask[0], values.even[1] & kept.mask[1]};
    const uint32_t odd[2] = {values.odd[0] & kept.mask[0], values.odd[1] & kept.mask[1]};
    MmaBf16(out[0], weights, even);
    MmaBf16(out[1], weights, odd);
  }
}
// What a lane has of them: of its i-th row four in a row, from 4 · (lane % 4) on.
__device__ __forceinline__ float4 RunOf(const float (&out)[2][4], int i) {
  return make_float4(out[0][i * 2], out[1][i * 2], out[0][i * 2 + 1], out[1][i * 2 + 1]);
}
__device__ __forceinline__ void Rescale(float (&out)[2][4], int i, float scale) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    out[n][i * 2] = out[n][i * 2] * scale;
    out[n][i * 2 + 1] = out[n][i * 2 + 1] * scale;
  }
}

// Four numbers of a row's output. Adding 0 makes a zero positive: how it underflowed may depend on
// masked positions.
__device__ __forceinline__ void StoreRun(const AttentionProblem& problem, int64_t element,
                                         const float4& four, float sum) {
  uint2 packed;
  packed.x = PackBf16(four.x / sum + 0.0f, four.y / sum + 0.0f);
  packed.y = PackBf16(four.z / sum + 0.0f, four.w / sum + 0.0f);
  *reinterpret_cast<uint2*>(static_cast<Bfloat16*>(problem.output) + element) = packed;
}

// Rows with all of their output in one warp, as prefill has them.
template <typename Kind>
class TensorRows : public TensorScores<Kind> {
 public:
  using Base = TensorScores<Kind>;
  using Base::kHeadDim;
  using Base::kRowsOfLane;
  using Base::kSteps;
  using Tile = Base::Tile;
  using TensorScores<Kind>::TensorScores;

  __device__ void Begin() {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      max_[i] = -__builtin_inff();
      sum_[i] = 0.0f;
    }
#pragma unroll
    for (int dims = 0; dims < kSteps; ++dims) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[dims][0][i] = out_[dims][1][i] = 0.0f;
    }
  }

  // From scores to weights, the new maxima and sums; accumulators are rescaled.
  __device__ void Softmax(int first_position, bool masked) {
    float largest[kRowsOfLane];
    this->Prepare(first_position, masked, largest);
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) RescaleRow(i, WeighRow(i, largest[i]));
  }

  // Adds what sub-tile `sub` has, of which `tokens` are there.
  __device__ void AddValues(SharedPtr<std::byte> v, int sub, int tokens) {
    uint32_t weights[4];
    this->GetWeights(sub, SharedCast<float>(v + Tile::kScalesAt), weights);
    const KeptPairs kept(tokens);
#pragma unroll
    for (int dims = 0; dims < kSteps; ++dims) {
      AddProducts<typename Kind::Kv>(out_[dims], weights, Tile::Values(v, dims), kept);
    }
  }

  // Numbers of the lane's rows, four in a row: of row i those from DimOf(run) on.
  // function(i, run, numbers) may change them.
  template <typename Function>
  __device__ void ForEachRun(const Function& function) {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
#pragma unroll
      for (int run = 0; run < kSteps; ++run) {
        float4 four = RunOf(out_[run], i);
        function(i, run, four);
        out_[run][0][i * 2] = four.x;
        out_[run][1][i * 2] = four.y;
        out_[run][0][i * 2 + 1] = four.z;
        out_[run][1][i * 2 + 1] = four.w;
      }
    }
  }

  __device__ void Finish(const AttentionProblem& problem) {
    ForEachRun([&](int i, int run, float4& four) {
      const int row = this->RowOf(i);
      if (this->Has(row)) StoreRun(problem, this->ElementOf(row) + DimOf(run), four, sum_[i]);
    });
  }

  __device__ float max(int i) const { return max_[i]; }
  __device__ float sum(int i) const { return sum_[i]; }
  __device__ void Set(int i, float max, float sum) {
    max_[i] = max;
    sum_[i] = sum;
  }

 protected:
  // Weights of the lane's i-th row; what its accumulators are still to be rescaled by.
  __device__ __forceinline__ float WeighRow(int i, float largest) {
    const float rescale = Raise(largest, &max_[i]);
    sum_[i] = sum_[i] * rescale + this->Weigh(i, max_[i]);
    return rescale;
  }
  __device__ __forceinline__ void RescaleRow(int i, float rescale) {
    if (rescale == 1.0f) return;
#pragma unroll
    for (int dims = 0; dims < kSteps; ++dims) Rescale(out_[dims], i, rescale);
  }

  float out_[kSteps][2][4];  // of each sixteen numbers the even ones, then the odd ones

 private:
  float max_[kRowsOfLane];
  float sum_[kRowsOfLane];
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_TENSOR_ROWS_H_
