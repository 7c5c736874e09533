// Decode attention in bf16 on the tensor cores (tensor_rows.h). What there is to read of a sequence
// and KV head is cut into segments, which a second launch merges.
//
//   many segments  A warp has one, and all query heads of its KV head; its sub-tiles come through a
//                  ring of its own in shared memory.
//   few            A block has one. Its warps share out tiles to score, and then dimensions to add:
//                  the bits are the same, as no sum is cut.
//   fewer          Many blocks have one, which share it out alike (tensor_spread_decode.cu).

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/tensor_segments.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int kWarp = kWarpLanes;

// A ring of a warp's own in shared memory, of units that copy(unit, to) brings, if there are so
// many.
template <int kRingBytes, int kUnitBytes>
class WarpRing {
 public:
  static constexpr int kStages = kRingBytes / kUnitBytes;

  template <typename Copy>
  __device__ __forceinline__ explicit WarpRing(const Copy& copy)
      : ring_(SharedMemory() + static_cast<int>(threadIdx.x / kWarp) * kRingBytes) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) Fill(i, copy);
  }

  // The next unit is there; whoever has read it lets another take its place.
  __device__ __forceinline__ SharedPtr<std::byte> Take() const {
    WaitForCopies<kStages - 1>();
    __syncwarp();
    return ring_ + slot_ * kUnitBytes;
  }
  template <typename Copy>
  __device__ __forceinline__ void Leave(const Copy& copy) {
    __syncwarp();
    Fill(slot_, copy);
    slot_ = slot_ + 1 == kStages ? 0 : slot_ + 1;
  }

 private:
  template <typename Copy>
  __device__ __forceinline__ void Fill(int slot, const Copy& copy) {
    copy(unit_++, ring_ + slot * kUnitBytes);
    CommitCopies();
  }

  const SharedPtr<std::byte> ring_;
  int unit_ = 0;
  int slot_ = 0;
};

// ---- many segments ----

constexpr int kDecodeWarps = 4;
constexpr int kDecodeBlocks = 2;             // of a processor
constexpr int kDecodeRingBytes = 24 * 1024;  // of a warp
constexpr size_t kDecodeSharedBytes = size_t{kDecodeWarps} * kDecodeRingBytes;
static_assert(kDecodeSharedBytes <= kLeastSharedBytes);

// One warp a (segment, sequence, KV head, chunk of its group).
template <typename Kind>
__global__ void TANDEM_THREADS(kDecodeWarps* kWarp, kDecodeBlocks)
    TensorDecodeKernel(DecodeLaunch launch) {
  LetNextLaunchBegin();
  using Rows = TensorRows<Kind>;
  using Tile = Rows::Tile;
  constexpr int kTileUnits = 2 * Rows::kSubTiles;  // of K, then of V
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const AttentionProblem& problem = launch.problem;
  const DecodeSegment segment = SegmentOf(launch, blockIdx.x * kDecodeWarps + warp);
  Rows rows(problem, segment.job, 0);
  const DecodeRange range = RangeOf(problem, segment);
  const SegmentTiles<typename Kind::Kv> tiles(problem, segment.job, range);
  WaitForLaunchBefore();
  if (range.begin >= range.end) return;
  const int num_units = NumTiles(range) * kTileUnits;
  const auto copy = [&](int unit, SharedPtr<std::byte> to) {
    if (unit >= num_units) return;
    const int of_tile = unit % kTileUnits;
    const auto source = tiles.At(unit / kTileUnits * Rows::kSubTiles + of_tile % Rows::kSubTiles);
    const bool is_value = of_tile >= Rows::kSubTiles;
    CopySubTile<Tile, kWarp>(is_value ? source.values : source.keys, source.there, is_value, lane,
                             to);
  };
  WarpRing<kDecodeRingBytes, Tile::kRingBytes> ring(copy);

  uint4 queries[Rows::kSteps];
#pragma unroll
  for (int step = 0; step < Rows::kSteps; ++step) queries[step] = rows.Query(step);
  rows.Begin();
  for (int tile = range.begin; tile < range.end; tile += kAttentionTileTokens) {
#pragma unroll
    for (int sub = 0; sub < Rows::kSubTiles; ++sub) {
      rows.Scores(ring.Take(), sub, [&](int step) { return queries[step]; });
      ring.Leave(copy);
    }
    rows.Softmax(tile, tile < range.first_visible || tile + kAttentionTileTokens > range.end);
#pragma unroll
    for (int sub = 0; sub < Rows::kSubTiles; ++sub) {
      rows.AddValues(ring.Take(), sub, range.end - tile - sub * kKvSubTileTokens);
      ring.Leave(copy);
    }
  }

  if (range.whole) {
    rows.Finish(problem);
    return;
  }
  const int64_t part = launch.PartOf(segment.index, segment.split);
  rows.ForEachRun([&](int i, int run, const float4& four) {
    const int row = Rows::RowOf(i);
    if (!rows.Has(row)) return;
    *reinterpret_cast<float4*>(launch.accumulators + (part + row) * Kind::kHeadDim + DimOf(run)) =
        four;
  });
#pragma unroll
  for (int i = 0; i < Rows::kRowsOfLane; ++i) {
    const int row = Rows::RowOf(i);
    if (lane % 4 == 0 && rows.Has(row)) launch.partials[part + row] = {rows.max(i), rows.sum(i)};
  }
}

// ---- few segments ----

constexpr int kWideBlocks = 2;  // of a processor
constexpr int kWideMost = 4;    // segments of a processor; of more, warps have one each.
constexpr int kWideWarps = 8;
constexpr int kWideRingBytes = 8 * 1024;               // of a warp
constexpr int kOwnTiles = kSegmentTiles / kWideWarps;  // that a warp scores

// Memory of a block: a ring a warp, queries as lanes have them, and what becomes of all tiles.
template <typename Kind>
struct WideShared : SegmentWeights<Kind> {
  using Tile = TensorScores<Kind>::Tile;
  static constexpr int kSubTiles = TensorScores<Kind>::kSubTiles;
  static constexpr int kUnitTiles = 2;  // of V
  // What a warp adds: a slice of V, sixteen dimensions, if the head has so many.
  static constexpr int kValueBytes = kUnitTiles * kSliceTileBytes<Kind>;
  static constexpr int kUnitBytes = Tile::kRingBytes > kValueBytes ? Tile::kRingBytes : kValueBytes;
  static constexpr size_t kBytes =
      size_t{kWideWarps} * (kWideRingBytes + kWarp * sizeof(uint4)) + SegmentWeights<Kind>::kBytes;
  static_assert(Kind::kHeadDim <= kWideWarps * 16);
  __device__ static bool HasSlice(int warp) { return warp < Kind::kHeadDim / 16; }

  SharedPtr<uint4> queries;  // [step, lane]
  __device__ WideShared()
      : SegmentWeights<Kind>(SharedMemory() +
                             kWideWarps * (kWideRingBytes + kWarp * int{sizeof(uint4)})),
        queries(SharedCast<uint4>(SharedMemory() + kWideWarps * kWideRingBytes)) {}
};

// What comes through a warp's ring: sub-tiles of K of its own tiles, then its slice of V of all.
template <typename Kind>
class WideUnits {
 public:
  __device__ __forceinline__ WideUnits(const AttentionProblem& problem, const RowJob& job,
                                       const DecodeRange& range)
      : warp_(threadIdx.x / kWarp), num_tiles_(NumTiles(range)), tiles_(problem, job, range) {}

  __device__ __forceinline__ void operator()(int unit, SharedPtr<std::byte> to) const {
    if (unit < kOwnTiles * kSubTiles) {
      const int sub = warp_ * kOwnTiles * kSubTiles + unit;
      const auto source = tiles_.At(sub);
      CopySubTile<Tile, kWarp>(source.keys, source.there, /*is_value=*/false, threadIdx.x % kWarp,
                               to);
      Shared().CopyValueScales(sub, source.values, source.there);
      return;
    }
    if (!Shared::HasSlice(warp_)) return;
#pragma unroll 1
    for (int i = 0; i < kUnitTiles; ++i) {
      const int tile = (unit - kOwnTiles * kSubTiles) * kUnitTiles + i;
      if (tile < num_tiles_) {
        CopySlices<Kind, 1>(tiles_, tile, warp_, 1,
                            [&](int) { return to + i * kSliceTileBytes<Kind>; });
      }
    }
  }

 private:
  using Shared = WideShared<Kind>;
  using Tile = Shared::Tile;
  static constexpr int kSubTiles = Shared::kSubTiles;
  static constexpr int kUnitTiles = Shared::kUnitTiles;

  const int warp_;
  const int num_tiles_;
  const SegmentTiles<typename Kind::Kv> tiles_;
};

// One block a (segment, sequence, KV head, chunk of its group). A warp scores some of its tiles,
// and then adds a slice of the values of all, one tile after the other.
template <typename Kind>
__global__ void TANDEM_THREADS(kWideWarps* kWarp, kWideBlocks)
    WideDecodeKernel(DecodeLaunch launch) {
  LetNextLaunchBegin();
  using Scores = TensorScores<Kind>;
  constexpr int kRowsOfLane = Scores::kRowsOfLane;
  constexpr int kUnitTiles = WideShared<Kind>::kUnitTiles;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const AttentionProblem& problem = launch.problem;
  const DecodeSegment segment = SegmentOf(launch, blockIdx.x);
  const DecodeRange range = RangeOf(problem, segment);
  const WideUnits<Kind> units(problem, segment.job, range);
  WaitForLaunchBefore();
  if (range.begin >= range.end) return;
  WarpRing<kWideRingBytes, WideShared<Kind>::kUnitBytes> ring(units);
  const WideShared<Kind> shared;

  // All warps have the same queries.
  Scores scores(problem, segment.job, 0);
  static_assert(Scores::kSteps <= kWideWarps);
  if (warp < Scores::kSteps) shared.queries[warp * kWarp + lane] = scores.Query(warp);
  __syncthreads();
  // The first tile's scores are where both tiles' weights will be.
  static_assert(kOwnTiles == 2 && Scores::kParked == kOwnTiles * Scores::kSubTiles);
  const SharedPtr<float4> parked =
      SharedCast<float4>(shared.weights + warp * Scores::kParked * kWarp + lane);
#pragma unroll 1
  for (int own = 0; own < kOwnTiles; ++own) {
    const int tile = warp * kOwnTiles + own;
    const int position = range.begin + tile * kAttentionTileTokens;
#pragma unroll
    for (int sub = 0; sub < Scores::kSubTiles; ++sub) {
      scores.Scores(ring.Take(), sub,
                    [&](int step) -> uint4 { return shared.queries[step * kWarp + lane]; });
      ring.Leave(units);
    }
    float largest[kRowsOfLane];
    scores.Prepare(position, /*masked=*/true, largest);
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      if (lane % 4 == 0) shared.largest[tile * kTensorRows + Scores::RowOf(i)] = largest[i];
    }
    if (own == 0) scores.Park(parked);
  }
  __syncthreads();
  // Weights are relative to the running maximum at their tile.
  float max[kRowsOfLane] = {-__builtin_inff(), -__builtin_inff()};
#pragma unroll 2
  for (int tile = 0; tile < warp * kOwnTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      Raise(shared.largest[tile * kTensorRows + Scores::RowOf(i)], &max[i]);
    }
  }
  Scores now(problem, segment.job, 0);
  now.Unpark(parked);
#pragma unroll 1
  for (int own = 0; own < kOwnTiles; ++own) {
    shared.Weigh(warp * kOwnTiles + own, &now, &max);
    now.CopyScores(scores);
  }
  __syncthreads();
  if (!WideShared<Kind>::HasSlice(warp)) return;

  SliceSums<Kind> sums;
#pragma unroll 1
  for (int unit = 0; unit * kUnitTiles * kAttentionTileTokens < range.end - range.begin; ++unit) {
    const SharedPtr<std::byte> v = ring.Take();
#pragma unroll
    for (int of_unit = 0; of_unit < kUnitTiles; ++of_unit) {
      const int tile = unit * kUnitTiles + of_unit;
      const int left = range.end - range.begin - tile * kAttentionTileTokens;
      if (left <= 0) break;
      sums.AddTile(shared, tile, left, v + of_unit * kSliceTileBytes<Kind>);
    }
    ring.Leave(units);
  }
  sums.Store(launch, segment, scores, warp, range.whole);
}

// ---- parts ----

struct PowerMerge {
  __device__ static void Add(const RowPartial& right, float right_acc, RowPartial* total,
                             float* acc) {
    const MergeScales scales = ScalesOf(total->max, right.max);
    total->max = scales.max;
    total->sum = total->sum * scales.left + right.sum * scales.right;
    *acc = *acc * scales.left + right_acc * scales.right;
  }
};

// A segment that is one block's leaves most processors without work where there are few: so many
// processors and more share one out, by a launch more.
constexpr int kSpreadOver = 4;

struct DecodePlan {
  int row_chunks;
  int chunk_rows;
  int64_t jobs;
  int64_t splits;
  bool is_spread;

  int64_t segments() const { return jobs * splits; }
  int64_t parts() const { return segments() * chunk_rows; }
  // Memory for what is to be merged.
  size_t part_bytes(int head_dim) const {
    if (splits == 1) return 0;
    return RoundUp<size_t>(static_cast<size_t>(parts()) *
                               (sizeof(RowPartial) + sizeof(float) * static_cast<size_t>(head_dim)),
                           sizeof(float4));
  }
};
DecodePlan PlanDecode(const HostDecodeAttentionArgs& args, const ProcessorLimits& limits) {
  const int group = args.num_heads / args.kv.num_kv_heads;
  const int row_chunks = CeilDiv(group, kTensorRows);
  DecodePlan plan{.row_chunks = row_chunks,
                  .chunk_rows = std::min(group, kTensorRows),
                  .jobs = args.num_sequences * args.kv.num_kv_heads * row_chunks,
                  .splits = MostSegments(args),
                  .is_spread = false};
  plan.is_spread = plan.segments() * kSpreadOver <= limits.num_processors;
  return plan;
}

}  // namespace

bool HasTensorAttention(const KvTileShape& shape, DType compute_dtype) {
  const int head_dim = shape.head_dim;
  return compute_dtype == DType::kBF16 && shape.type != KvType::kF32 &&
         (head_dim == 64 || head_dim == 96 || head_dim == 128);
}

size_t TensorDecodeScratchBytes(const HostDecodeAttentionArgs& args,
                                const ProcessorLimits& limits) {
  const DecodePlan plan = PlanDecode(args, limits);
  return plan.part_bytes(args.kv.shape.head_dim) +
         (plan.is_spread ? SpreadDecodeScratchBytes(plan.segments()) : 0);
}

cudaError_t TensorDecodeAttention(const HostDecodeAttentionArgs& args, void* scratch,
                                  const ProcessorLimits& limits, cudaStream_t stream) {
  const DecodePlan plan = PlanDecode(args, limits);
  const int head_dim = args.kv.shape.head_dim;
  auto* const accumulators = static_cast<float*>(scratch);
  const DecodeLaunch launch{
      .problem = ProblemOf(args),
      .num_tokens = args.num_tokens,
      .num_sequences = args.num_sequences,
      .row_chunks = plan.row_chunks,
      .chunk_rows = plan.chunk_rows,
      .splits = plan.splits,
      .partials = reinterpret_cast<RowPartial*>(accumulators + plan.parts() * head_dim),
      .accumulators = accumulators};
  const int64_t segments = plan.segments();
  const bool few = segments <= int64_t{kWideMost} * limits.num_processors;
  const auto launch_whole = [&]<typename Kind>() {
    // Else a warp has a segment, on GPUs with less memory.
    const bool wide = few && WideShared<Kind>::kBytes <= limits.max_shared_bytes;
    return wide ? Launch(WideDecodeKernel<Kind>,
                         {.blocks = segments,
                          .threads = kWideWarps * kWarp,
                          .shared_bytes = WideShared<Kind>::kBytes},
                         stream, launch)
                : Launch(TensorDecodeKernel<Kind>,
                         {.blocks = CeilDiv<int64_t>(segments, kDecodeWarps),
                          .threads = kDecodeWarps * kWarp,
                          .shared_bytes = kDecodeSharedBytes},
                         stream, launch);
  };
  const cudaError_t error =
      plan.is_spread
          ? LaunchSpreadDecode(args, launch,
                               static_cast<std::byte*>(scratch) + plan.part_bytes(head_dim), limits,
                               stream)
          : ByKind</*kOneToken=*/true>(args, launch_whole);
  if (error != cudaSuccess) return error;
  return MergeSplits<DType::kBF16, PowerMerge>(launch, plan.jobs, stream);
}

}  // namespace tandem
