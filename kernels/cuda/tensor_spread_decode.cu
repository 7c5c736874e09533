// Decode attention of few segments on the tensor cores, each spread over many blocks by two
// launches: of tiles that are scored, and of slices of V that are added. No sum is cut, so that the
// bits are those of tensor_decode.cu.

#include <cuda_runtime.h>

#include "kernels/cuda/tensor_segments.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int kWarp = kWarpLanes;
constexpr int kSubTiles = kAttentionTileTokens / kKvSubTileTokens;
constexpr int kScoreWarps = kSubTiles;      // A warp has a sub-tile, a block a tile.
constexpr int kScoreBlocks = 4;             // of a processor
constexpr int kSliceWarps = kSegmentTiles;  // A warp has a tile; then some have a slice.
constexpr int kMostSlices = 2;              // of a block

struct SpreadLaunch {
  DecodeLaunch decode;
  float4* scores;  // [segment, sub-tile, row of a lane, lane], four positions each
  float* largest;  // [segment, tile, row, sub-tile]
  int slices;      // of a block
};

__device__ __forceinline__ int64_t ScoresAt(int64_t segment, int sub, int row_of_lane) {
  const int64_t at = (segment * kSegmentTiles * kSubTiles + sub) * 2 + row_of_lane;
  return at * kWarp + static_cast<int>(threadIdx.x) % kWarp;
}
__device__ __forceinline__ int64_t LargestAt(int64_t segment, int tile, int row) {
  return ((segment * kSegmentTiles + tile) * kTensorRows + row) * kSubTiles;
}

// One block a (segment, tile): scores of its sub-tiles, and of each the rows' largest.
template <typename Kind>
__global__ void TANDEM_THREADS(kScoreWarps* kWarp, kScoreBlocks)
    SpreadScoresKernel(SpreadLaunch launch) {
  LetNextLaunchBegin();
  using Scores = TensorScores<Kind, 1>;
  using Tile = Scores::Tile;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int tile = static_cast<int>(blockIdx.x % kSegmentTiles);
  const int sub = tile * kSubTiles + warp;
  const AttentionProblem& problem = launch.decode.problem;
  const DecodeSegment segment = SegmentOf(launch.decode, blockIdx.x / kSegmentTiles);
  const DecodeRange range = RangeOf(problem, segment);
  const auto source = SegmentTiles<typename Kind::Kv>(problem, segment.job, range).At(sub);
  WaitForLaunchBefore();
  if (range.begin + tile * kAttentionTileTokens >= range.end) return;
  const SharedPtr<std::byte> keys = SharedMemory() + warp * Tile::kRingBytes;
  CopySubTile<Tile, kWarp>(source.keys, source.there, /*is_value=*/false, lane, keys);
  CommitCopies();

  Scores scores(problem, segment.job, 0);
  uint4 queries[Scores::kSteps];
#pragma unroll
  for (int step = 0; step < Scores::kSteps; ++step) queries[step] = scores.Query(step);
  WaitForCopies<0>();
  __syncwarp();
  scores.Scores(keys, 0, [&](int step) { return queries[step]; });
  float largest[Scores::kRowsOfLane];
  scores.Prepare(range.begin + sub * kKvSubTileTokens, /*masked=*/true, largest);
#pragma unroll
  for (int i = 0; i < Scores::kRowsOfLane; ++i) {
    const int row = Scores::RowOf(i);
    if (!scores.Has(row)) continue;
    launch.scores[ScoresAt(segment.at, sub, i)] = scores.FourOf(0, i);
    if (lane % 4 == 0) launch.largest[LargestAt(segment.at, tile, row) + warp] = largest[i];
  }
}

// Memory of a block: what becomes of all tiles, and its slices of V.
template <typename Kind>
struct SpreadShared : SegmentWeights<Kind> {
  static constexpr int kSlices = Kind::kHeadDim / 16;
  static_assert(kSlices % kMostSlices == 0);  // No block lacks one.
  static constexpr size_t Bytes(int slices) {
    return SegmentWeights<Kind>::kBytes +
           static_cast<size_t>(slices) * kSegmentTiles * kSliceTileBytes<Kind>;
  }
  __device__ SpreadShared() : SegmentWeights<Kind>(SharedMemory()) {}

  __device__ SharedPtr<std::byte> SliceOfTile(int of_block, int tile) const {
    return SharedMemory() + static_cast<int>(SegmentWeights<Kind>::kBytes) +
           (of_block * kSegmentTiles + tile) * kSliceTileBytes<Kind>;
  }
};

// One block some slices of a segment, of a head's dimensions sixteen each. All warps make weights
// of scores, a tile each, which every block does; then a warp adds a slice.
template <typename Kind>
__global__ void TANDEM_THREADS(kSliceWarps* kWarp, 1) SpreadValuesKernel(SpreadLaunch launch) {
  LetNextLaunchBegin();
  using Scores = TensorScores<Kind>;
  constexpr int kRowsOfLane = Scores::kRowsOfLane;
  constexpr int kSlices = SpreadShared<Kind>::kSlices;
  const int warp = threadIdx.x / kWarp;
  const AttentionProblem& problem = launch.decode.problem;
  const unsigned blocks = (kSlices + launch.slices - 1) / launch.slices;
  const DecodeSegment segment = SegmentOf(launch.decode, blockIdx.x / blocks);
  const int first_slice = static_cast<int>(blockIdx.x % blocks) * launch.slices;
  const DecodeRange range = RangeOf(problem, segment);
  const SegmentTiles<typename Kind::Kv> tiles(problem, segment.job, range);
  WaitForLaunchBefore();
  if (range.begin >= range.end) return;
  const int num_tiles = NumTiles(range);
  const bool has_tile = warp < num_tiles;
  const SpreadShared<Kind> shared;
  Scores scores(problem, segment.job, 0);
  if (has_tile) {
#pragma unroll
    for (int sub = 0; sub < kSubTiles; ++sub) {
      const auto source = tiles.At(warp * kSubTiles + sub);
      shared.CopyValueScales(warp * kSubTiles + sub, source.values, source.there);
    }
    CommitCopies();
    CopySlices<Kind, kMostSlices>(tiles, warp, first_slice, launch.slices,
                                  [&](int i) { return shared.SliceOfTile(i, warp); });
    CommitCopies();
#pragma unroll
    for (int sub = 0; sub < kSubTiles; ++sub) {
#pragma unroll
      for (int i = 0; i < kRowsOfLane; ++i) {
        const float4* const from = launch.scores + ScoresAt(segment.at, warp * kSubTiles + sub, i);
        scores.SetFour(sub, i, scores.Has(Scores::RowOf(i)) ? *from : float4{});
      }
    }
  }
  // A thread has a row of a tile.
  if (threadIdx.x < kSegmentTiles * kTensorRows) {
    const int tile = threadIdx.x / kTensorRows;
    const int row = threadIdx.x % kTensorRows;
    float most = -__builtin_inff();
    if (tile < num_tiles && scores.Has(row)) {
      const auto four =
          *reinterpret_cast<const float4*>(launch.largest + LargestAt(segment.at, tile, row));
      const float of_subs[kSubTiles] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int sub = 0; sub < kSubTiles; ++sub) most = of_subs[sub] > most ? of_subs[sub] : most;
    }
    shared.largest[threadIdx.x] = most;
  }
  __syncthreads();
  if (has_tile) {
    float max[kRowsOfLane] = {-__builtin_inff(), -__builtin_inff()};
#pragma unroll 2
    for (int tile = 0; tile < warp; ++tile) {
#pragma unroll
      for (int i = 0; i < kRowsOfLane; ++i) {
        Raise(shared.largest[tile * kTensorRows + Scores::RowOf(i)], &max[i]);
      }
    }
    if constexpr (Kind::Kv::kHasTokenScales) {
      WaitForCopies<1>();
      __syncwarp();
    }
    shared.Weigh(warp, &scores, &max);
  }
  WaitForCopies<0>();
  __syncthreads();

  const int slice = first_slice + warp;
  if (warp >= launch.slices) return;
  SliceSums<Kind> sums;
  // By two it takes 40 registers more, and has no room beside blocks that score.
#pragma unroll 1
  for (int tile = 0; tile < num_tiles; ++tile) {
    sums.AddTile(shared, tile, range.end - range.begin - tile * kAttentionTileTokens,
                 shared.SliceOfTile(warp, tile));
  }
  sums.Store(launch.decode, segment, scores, slice, range.whole);
}

constexpr size_t kScoresOfSegment = size_t{kSegmentTiles} * kSubTiles * 2 * kWarp;     // float4
constexpr size_t kLargestOfSegment = size_t{kSegmentTiles} * kTensorRows * kSubTiles;  // float

template <typename Kind>
cudaError_t LaunchKind(int64_t segments, const ProcessorLimits& limits, cudaStream_t stream,
                       SpreadLaunch launch) {
  using Scores = TensorScores<Kind, 1>;
  const cudaError_t error = Launch(SpreadScoresKernel<Kind>,
                                   {.blocks = segments * kSegmentTiles,
                                    .threads = kScoreWarps * kWarp,
                                    .shared_bytes = size_t{kScoreWarps} * Scores::Tile::kRingBytes},
                                   stream, launch);
  if (error != cudaSuccess) return error;
  // Each block makes all weights: so no more of them than there are processors.
  using Shared = SpreadShared<Kind>;
  static_assert(Shared::Bytes(kMostSlices) <= kLeastSharedBytes);
  launch.slices = segments * Shared::kSlices <= limits.num_processors ? 1 : kMostSlices;
  return Launch(SpreadValuesKernel<Kind>,
                {.blocks = segments * CeilDiv<int64_t>(Shared::kSlices, launch.slices),
                 .threads = kSliceWarps * kWarp,
                 .shared_bytes = Shared::Bytes(launch.slices)},
                stream, launch);
}

}  // namespace

size_t SpreadDecodeScratchBytes(int64_t segments) {
  return static_cast<size_t>(segments) *
         (kScoresOfSegment * sizeof(float4) + kLargestOfSegment * sizeof(float));
}

cudaError_t LaunchSpreadDecode(const HostDecodeAttentionArgs& args, const DecodeLaunch& decode,
                               void* scratch, const ProcessorLimits& limits, cudaStream_t stream) {
  const int64_t segments =
      decode.num_sequences * decode.problem.kv.num_kv_heads * decode.row_chunks * decode.splits;
  auto* const scores = static_cast<float4*>(scratch);
  const SpreadLaunch launch{.decode = decode,
                            .scores = scores,
                            .largest = reinterpret_cast<float*>(
                                scores + static_cast<size_t>(segments) * kScoresOfSegment),
                            .slices = 0};
  return ByKind</*kOneToken=*/true>(
      args, [&]<typename Kind>() { return LaunchKind<Kind>(segments, limits, stream, launch); });
}

}  // namespace tandem
