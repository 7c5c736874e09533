// Attention on the tensor cores: query rows of one sequence and one KV head, sixteen to a product,
// by one warp. Decode and prefill attention have it in common, and so a row's bits.
//
// The order is that of docs/numerics.md (tiles of 64 positions, segments of 1,024, left to right),
// but for three things. Products are summed as the tensor cores do it. exp is 2^x by fused
// multiply-adds. And what scores are taken relative to is not their maximum but the next whole
// number in base 2: so accumulators are rescaled by powers of two, which rounds nothing.
//
// K and V are read as they lie in their tiles (kv_tile.h), pieces of 16 bytes moved so that lanes
// find them in different banks. Which of a product's inputs are which is ours to choose, as its sum
// has no order: a lane's scores of sixteen positions are, as they are, what it gives the product
// with V (Dao, FlashAttention-2, 2023).

#ifndef TANDEM_KERNELS_CUDA_TENSOR_ROWS_H_
#define TANDEM_KERNELS_CUDA_TENSOR_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/vector_math.h"

namespace tandem {

// 2^x for x <= 0, within 3e-7 of it; 0 below −125. Coefficients fit the Chebyshev nodes of |r| <=
// ½.
__device__ __forceinline__ float Exp2(float x) {
  const float shifted = x + kRoundFloat;
  const float r = x - (shifted - kRoundFloat);
  float y = __fmaf_rn(r, 0x1.5ec866p-10f, 0x1.3cbf6p-7f);
  y = __fmaf_rn(r, y, 0x1.c6afeep-5f);
  y = __fmaf_rn(r, y, 0x1.ebfa4cp-3f);
  y = __fmaf_rn(r, y, 0x1.62e43p-1f);
  y = __fmaf_rn(r, y, 1.0f);
  y = __uint_as_float(__float_as_uint(y) + (__float_as_uint(shifted) << 23));
  return x < -125.0f ? 0.0f : y;
}

// 2^x of a whole x <= 0, or of −infinity; 0 below −126.
__device__ __forceinline__ float PowerOfTwo(float x) {
  return x < -126.0f ? 0.0f
                     : __uint_as_float(static_cast<uint32_t>(static_cast<int>(x) + 127) << 23);
}

// Rows of one product.
inline constexpr int kTensorRows = 16;

// Row i is row first_row + i of the job.
template <int kHeadDim>
class TensorRows {
 public:
  static_assert(kHeadDim % 32 == 0);
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kSubTileBytes = kKvSubTileTokens * kHeadDim * 2;
  static constexpr int kSubTilePieces = kSubTileBytes / 16;
  static constexpr int kSubTiles = kAttentionTileTokens / kKvSubTileTokens;
  static constexpr int kRowsOfLane = 2;

  // Where piece `piece` of a sub-tile of K, or V, lies in shared memory.
  __device__ static int PieceAt(bool is_value, int piece) {
    constexpr int kValuePieces = kHeadDim / 4;  // of two positions
    const int moved = is_value ? piece ^ piece / kValuePieces : piece ^ piece / 8 % 2 * 2;
    return moved * 16;
  }

  __device__ TensorRows(const AttentionProblem& problem, const RowJob& job, int first_row)
      : problem_(problem),
        job_(job),
        first_row_(first_row),
        group_(problem.num_heads / problem.kv.num_kv_heads),
        scale_(problem.softmax_scale * kLog2E) {}

  __device__ int VisibleOf(int row) const {
    const int of_job = job_.first_row + first_row_ + row;
    return job_.num_cached + of_job / group_ + 1;
  }
  __device__ int FirstVisibleOf(int row) const {
    return static_cast<int>(FirstVisible(VisibleOf(row), problem_.window));
  }
  __device__ bool Has(int row) const { return first_row_ + row < job_.num_rows; }
  // Where the row is in query and output.
  __device__ int64_t ElementOf(int row) const {
    const int of_job = job_.first_row + first_row_ + row;
    const int64_t token = job_.query_start + of_job / group_;
    const int head = job_.kv_head * group_ + of_job % group_;
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

  __device__ void Begin() {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      max_[i] = -__builtin_inff();
      sum_[i] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[n][i] = 0.0f;
    }
  }

  // Scores of the tile's sub-tile `sub`; queries are what Query gave.
  __device__ void Scores(SharedPtr<std::byte> k, int sub, const uint4 (&queries)[kSteps]) {
    const int lane = threadIdx.x % 32;
    const int at = lane % 4 * 64 + ((lane / 8) ^ (lane % 4 / 2 * 2)) * 16 + lane / 4 % 2 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) scores_[sub * 2][i] = scores_[sub * 2 + 1][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint2 low = SharedCast<uint2>(k + at + step * 512)[0];
      const uint2 high = SharedCast<uint2>(k + at + step * 512 + 256)[0];
      const uint32_t even[2] = {low.x, high.x};
      const uint32_t odd[2] = {low.y, high.y};
      const uint4& q = queries[step];
      const uint32_t a[4] = {q.x, q.y, q.z, q.w};
      MmaBf16(scores_[sub * 2], a, even);
      MmaBf16(scores_[sub * 2 + 1], a, odd);
    }
  }

  // From scores to weights, the new maxima and sums; accumulators are rescaled. Code for caps and
  // masks is apart, as most tiles have neither.
  __device__ void Softmax(int first_position, bool masked) {
    if (problem_.score_cap != 0.0f) {
      Cap();
      Weigh<true>(first_position, kLog2E);
    } else if (masked) {
      Weigh<true>(first_position, scale_);
    } else {
      Weigh<false>(first_position, scale_);
    }
  }

  // Adds what sub-tile `sub` has. Slots from position `tokens` of it on were never written, or are
  // stale.
  __device__ void AddValues(SharedPtr<std::byte> v, int sub, int tokens) {
    const int lane = threadIdx.x % 32;
    const int pair = lane % 4 * 2;
    int at[2][2];  // of dimensions 0 and 16, positions 4 · (lane % 4) and two more
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        at[i][p] =
            (pair + p) * kHeadDim * 4 + ((i * 4 + lane / 8) ^ (pair + p)) * 16 + lane / 4 % 2 * 8;
      }
    }
    uint32_t keep[2] = {0xFFFFFFFFu, 0xFFFFFFFFu};
    if (tokens < kKvSubTileTokens) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int left = tokens - (pair + p) * 2;
        keep[p] = left >= 2 ? 0xFFFFFFFFu : left == 1 ? 0xFFFFu : 0;
      }
    }
#pragma unroll
    for (int dims = 0; dims < kHeadDim / 16; ++dims) {
      uint2 low = SharedCast<uint2>(v + at[dims % 2][0] + dims / 2 * 128)[0];
      uint2 high = SharedCast<uint2>(v + at[dims % 2][1] + dims / 2 * 128)[0];
      const uint32_t even[2] = {low.x & keep[0], high.x & keep[1]};
      const uint32_t odd[2] = {low.y & keep[0], high.y & keep[1]};
      MmaBf16(out_[dims * 2], weights_[sub], even);
      MmaBf16(out_[dims * 2 + 1], weights_[sub], odd);
    }
  }

  // What a lane has: of each of its rows, runs of four numbers of the output, those from
  // 16 · i + 4 · (lane % 4) on. function(i, row, run, numbers)
  template <typename Function>
  __device__ void ForEachRun(const Function& function) {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
#pragma unroll
      for (int run = 0; run < kHeadDim / 16; ++run) {
        float* const even = &out_[run * 2][i * 2];
        float* const odd = &out_[run * 2 + 1][i * 2];
        float4 four = make_float4(even[0], odd[0], even[1], odd[1]);
        function(i, run, four);
        even[0] = four.x;
        odd[0] = four.y;
        even[1] = four.z;
        odd[1] = four.w;
      }
    }
  }
  __device__ static int DimOf(int run) { return run * 16 + static_cast<int>(threadIdx.x) % 4 * 4; }

  __device__ void Finish() {
    ForEachRun([this](int i, int run, float4& four) {
      const int row = RowOf(i);
      if (!Has(row)) return;
      const float sum = sum_[i];
      // Adding 0 makes a zero positive: how it underflowed may depend on masked positions.
      uint2 packed;
      packed.x = PackBf16(four.x / sum + 0.0f, four.y / sum + 0.0f);
      packed.y = PackBf16(four.z / sum + 0.0f, four.w / sum + 0.0f);
      *reinterpret_cast<uint2*>(static_cast<Bfloat16*>(problem_.output) + ElementOf(row) +
                                DimOf(run)) = packed;
    });
  }

  __device__ float max(int i) const { return max_[i]; }
  __device__ float sum(int i) const { return sum_[i]; }
  __device__ void Set(int i, float max, float sum) {
    max_[i] = max;
    sum_[i] = sum;
  }

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
  __device__ __forceinline__ void Weigh(int first_position, float scale) {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int visible = VisibleOf(RowOf(i));
      const int first_visible = FirstVisibleOf(RowOf(i));
      float max = max_[i];
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
      max = __builtin_ceilf(max);
      const bool none = max == -__builtin_inff();
      const float rescale = none ? 1.0f : PowerOfTwo(max_[i] - max);
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < 2 * kSubTiles; n += 2) {
        float weights[4];  // of four positions in a row
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float score = scores_[n + e % 2][i * 2 + e / 2];
          weights[e] = kMasked && none ? 0.0f : Exp2(score - max);
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
      sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      max_[i] = max;
      sum_[i] = sum_[i] * rescale + sum;
      if (rescale != 1.0f) {
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          out_[n][i * 2] = out_[n][i * 2] * rescale;
          out_[n][i * 2 + 1] = out_[n][i * 2 + 1] * rescale;
        }
      }
    }
  }

  const AttentionProblem& problem_;
  const RowJob& job_;
  const int first_row_;
  const int group_;
  const float scale_;
  float max_[kRowsOfLane];
  float sum_[kRowsOfLane];
  float scores_[2 * kSubTiles][4];
  uint32_t weights_[kSubTiles][4];
  float out_[kHeadDim / 8][4];
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_TENSOR_ROWS_H_
