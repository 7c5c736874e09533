// Segments of decode attention on the tensor cores: which there are, what becomes of their tiles in
// a block's shared memory, and the sums of a slice of V, sixteen dimensions, by a warp.

#ifndef TANDEM_KERNELS_CUDA_TENSOR_SEGMENTS_H_
#define TANDEM_KERNELS_CUDA_TENSOR_SEGMENTS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/processor_limits.h"
#include "kernels/cuda/tensor_tiles.h"
#include "kernels/support/host_args.h"

namespace tandem {

inline constexpr int kWarpLanes = 32;  // of a warp
inline constexpr int kSegmentTiles = kAttentionSegmentTokens / kAttentionTileTokens;

// What some warps are about: a segment of a job.
struct DecodeSegment {
  int64_t at;  // among all
  unsigned index;
  int split;
  RowJob job;
};
__device__ __forceinline__ DecodeSegment SegmentOf(const DecodeLaunch& launch, unsigned at) {
  const unsigned num_jobs = launch.num_jobs();
  const unsigned index = at % num_jobs;
  return {
      .at = at, .index = index, .split = static_cast<int>(at / num_jobs), .job = launch.Job(index)};
}

// What a sequence has of it.
struct DecodeRange {
  int first_visible;
  int begin;   // of a tile
  int end;     // perhaps not after begin
  bool whole;  // There is no other.
};
__device__ __forceinline__ DecodeRange RangeOf(const AttentionProblem& problem,
                                               const DecodeSegment& segment) {
  const int visible = segment.job.num_cached + 1;
  const auto first_visible = static_cast<int>(FirstVisible(visible, problem.window));
  const SeenSegments seen = SegmentsSeen(problem, visible);
  const int segment_begin = (seen.first + segment.split) * kAttentionSegmentTokens;
  const int first_tile = first_visible / kAttentionTileTokens * kAttentionTileTokens;
  return {.first_visible = first_visible,
          .begin = first_tile > segment_begin ? first_tile : segment_begin,
          .end = Least(segment_begin + kAttentionSegmentTokens, visible),
          .whole = seen.count == 1};
}
__device__ __forceinline__ int NumTiles(const DecodeRange& range) {
  return (range.end - range.begin + kAttentionTileTokens - 1) / kAttentionTileTokens;
}

// The sub-tiles of a segment: each lane of a warp knows where two of them are.
template <typename Kv>
class SegmentTiles {
 public:
  __device__ __forceinline__ SegmentTiles(const AttentionProblem& problem, const RowJob& job,
                                          const DecodeRange& range)
      : range_(range), problem_(problem) {
    static_assert(kAttentionSegmentTokens / kKvSubTileTokens == 2 * kWarpLanes);
    const int32_t* const table = problem.block_table + job.sequence * problem.max_blocks;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int sub = i * kWarpLanes + static_cast<int>(threadIdx.x) % kWarpLanes;
      keys_[i] = problem.kv.base;
      if (!Sees(sub)) continue;
      const SubTiles at(problem, job, range.begin + sub * kKvSubTileTokens);
      keys_[i] = at.In<Kv>(table[at.index()]);
    }
  }

  // A sub-tile, if any row sees some of it.
  struct Source {
    const std::byte* keys;
    const std::byte* values;
    bool there;
  };
  // By the whole warp: the sub-th of the segment.
  __device__ __forceinline__ Source At(int sub) const {
    const auto known = reinterpret_cast<uintptr_t>(sub < kWarpLanes ? keys_[0] : keys_[1]);
    const auto* const keys = reinterpret_cast<const std::byte*>(
        __shfl_sync(0xFFFFFFFFu, static_cast<unsigned long long>(known), sub % kWarpLanes));
    return {keys, keys + ToValues(problem_.kv), Sees(sub)};
  }

 private:
  __device__ __forceinline__ bool Sees(int sub) const {
    return SeesSubTile(range_.begin + sub * kKvSubTileTokens, range_.first_visible, range_.end);
  }

  const DecodeRange range_;
  const AttentionProblem& problem_;
  const std::byte* keys_[2];
};

// Bytes of a slice of V, of a tile.
template <typename Kind>
inline constexpr int kSliceTileBytes =
    TensorScores<Kind>::kSubTiles* TensorScores<Kind>::Tile::kSliceBytes;

// By a warp, of a tile: `count` slices of V, kMost at most, from the `first`-th on; the i-th goes
// to to(i).
template <typename Kind, int kMost, typename To>
__device__ __forceinline__ void CopySlices(const SegmentTiles<typename Kind::Kv>& tiles, int tile,
                                           int first, int count, const To& to) {
  using Tile = TensorScores<Kind>::Tile;
  constexpr int kSubTiles = TensorScores<Kind>::kSubTiles;
  static_assert(Tile::kSlicePieces <= kWarpLanes);
  const int piece = threadIdx.x % kWarpLanes;
  int from[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) from[i] = Tile::SliceFrom(first + i, piece);
  const int at = Tile::SlicePieceAt(piece);
#pragma unroll
  for (int sub = 0; sub < kSubTiles; ++sub) {
    const auto source = tiles.At(tile * kSubTiles + sub);
    if (Tile::kSlicePieces < kWarpLanes && piece >= Tile::kSlicePieces) continue;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= count) break;
      CopyAsync16(to(i) + sub * Tile::kSliceBytes + at, source.values + from[i], source.there);
    }
  }
}

// The weights of a segment's tiles as lanes give them to products, of each tile the rows' largest
// scores and sums of weights, and where tokens have scales those of V.
template <typename Kind>
struct SegmentWeights {
  using Scores = TensorScores<Kind>;
  static constexpr int kSubTiles = Scores::kSubTiles;
  static constexpr int kTileScales = Kind::Kv::kHasTokenScales ? kAttentionTileTokens : 0;
  static constexpr size_t kBytes =
      kSegmentTiles * (kSubTiles * kWarpLanes * sizeof(uint4) + 2 * kTensorRows * sizeof(float) +
                       kTileScales * sizeof(float));

  SharedPtr<uint4> weights;  // [tile, sub-tile, lane]
  SharedPtr<float> largest;  // [tile, row]
  SharedPtr<float> sums;     // [tile, row]
  SharedPtr<float> scales;   // [tile, token]
  __device__ explicit SegmentWeights(SharedPtr<std::byte> at)
      : weights(SharedCast<uint4>(at)),
        largest(SharedCast<float>(weights + kSegmentTiles * kSubTiles * kWarpLanes)),
        sums(largest + kSegmentTiles * kTensorRows),
        scales(sums + kSegmentTiles * kTensorRows) {}

  // By a warp: scales of the sub-th sub-tile of V, with which weights are multiplied.
  __device__ __forceinline__ void CopyValueScales(int sub, const std::byte* values,
                                                  bool there) const {
    if constexpr (Kind::Kv::kHasTokenScales) {
      const int byte = static_cast<int>(threadIdx.x) % kWarpLanes * 16;
      if (byte >= Kind::Kv::kScaleBytes) return;
      CopyAsync16(SharedCast<std::byte>(scales + sub * kKvSubTileTokens) + byte,
                  values + Kind::Kv::NumberBytes(Kind::kHeadDim) + byte, there);
    }
  }

  // By a warp that has a tile's scores: its weights, relative to the running maximum there. `max`
  // is that of the tiles before.
  __device__ __forceinline__ void Weigh(int tile, Scores* scores,
                                        float (*max)[Scores::kRowsOfLane]) const {
    const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
    for (int i = 0; i < Scores::kRowsOfLane; ++i) {
      const int at = tile * kTensorRows + Scores::RowOf(i);
      Raise(largest[at], &(*max)[i]);
      const float sum = scores->Weigh(i, (*max)[i]);
      if (lane % 4 == 0) sums[at] = sum;
    }
#pragma unroll
    for (int sub = 0; sub < kSubTiles; ++sub) {
      uint32_t four[4];
      scores->GetWeights(sub, scales + (tile * kSubTiles + sub) * kKvSubTileTokens, four);
      weights[(tile * kSubTiles + sub) * kWarpLanes + lane] =
          make_uint4(four[0], four[1], four[2], four[3]);
    }
  }
};

// What a warp's rows have of a slice of the output: chains over a segment's tiles.
template <typename Kind>
class SliceSums {
 public:
  using Scores = TensorScores<Kind>;
  using Tile = Scores::Tile;
  static constexpr int kRowsOfLane = Scores::kRowsOfLane;

  __device__ SliceSums() {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) max_[i] = -__builtin_inff();
  }

  // `left`: positions from the tile's first one to the segment's end. `slices`: of V, those of the
  // tile's sub-tiles.
  __device__ __forceinline__ void AddTile(const SegmentWeights<Kind>& of, int tile, int left,
                                          SharedPtr<std::byte> slices) {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int at = tile * kTensorRows + Scores::RowOf(i);
      const float rescale = Raise(of.largest[at], &max_[i]);
      sum_[i] = sum_[i] * rescale + of.sums[at];
      Rescale(out_, i, rescale);
    }
#pragma unroll
    for (int sub = 0; sub < Scores::kSubTiles; ++sub) {
      const uint4 four = of.weights[(tile * Scores::kSubTiles + sub) * kWarpLanes +
                                    static_cast<int>(threadIdx.x) % kWarpLanes];
      const uint32_t weights[4] = {four.x, four.y, four.z, four.w};
      const KeptPairs kept(left - sub * kKvSubTileTokens);
      AddProducts<typename Kind::Kv>(out_, weights,
                                     Tile::SliceValues(slices + sub * Tile::kSliceBytes), kept);
    }
  }

  // The slice-th of the output, if the segment is the whole; else of the part's accumulators, and
  // the first slice has its maxima and sums.
  __device__ __forceinline__ void Store(const DecodeLaunch& launch, const DecodeSegment& segment,
                                        const Scores& scores, int slice, bool whole) const {
    const int64_t part = launch.PartOf(segment.index, segment.split);
    const int dim = DimOf(slice);
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int row = Scores::RowOf(i);
      if (!scores.Has(row)) continue;
      const float4 four = RunOf(out_, i);
      if (whole) {
        StoreRun(launch.problem, scores.ElementOf(row) + dim, four, sum_[i]);
        continue;
      }
      *reinterpret_cast<float4*>(launch.accumulators + (part + row) * Kind::kHeadDim + dim) = four;
      if (slice == 0 && threadIdx.x % 4 == 0) launch.partials[part + row] = {max_[i], sum_[i]};
    }
  }

 private:
  float max_[kRowsOfLane];
  float sum_[kRowsOfLane] = {};
  float out_[2][4] = {};
};

// ---- few segments, each spread over many blocks (tensor_spread_decode.cu) ----

size_t SpreadDecodeScratchBytes(int64_t segments);
// All but the merge of splits. `scratch` is 16-byte aligned.
cudaError_t LaunchSpreadDecode(const HostDecodeAttentionArgs& args, const DecodeLaunch& decode,
                               void* scratch, const ProcessorLimits& limits, cudaStream_t stream);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_TENSOR_SEGMENTS_H_
