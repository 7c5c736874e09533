// Decode attention in bf16 on the tensor cores (tensor_rows.h). What there is to read of a sequence
// and KV head is cut into segments, which a second launch merges.
//
//   many segments  A warp has one, and all query heads of its KV head; its sub-tiles come through a
//                  ring of its own in shared memory.
//   few            A block has one. Its warps share out tiles to score, and then dimensions to add:
//                  the bits are the same, as no sum is cut.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/tensor_tiles.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int kWarp = 32;

// A segment of a sequence.
struct DecodeRange {
  int first_visible;
  int begin;   // of a tile
  int end;     // perhaps not after begin
  bool whole;  // There is no other.
};
__device__ __forceinline__ DecodeRange RangeOf(const AttentionProblem& problem, const RowJob& job,
                                               int split) {
  const int visible = job.num_cached + 1;
  const auto first_visible = static_cast<int>(FirstVisible(visible, problem.window));
  const SeenSegments seen = SegmentsSeen(problem, visible);
  const int segment_begin = (seen.first + split) * kAttentionSegmentTokens;
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
    static_assert(kAttentionSegmentTokens / kKvSubTileTokens == 2 * kWarp);
    const int32_t* const table = problem.block_table + job.sequence * problem.max_blocks;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int sub = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
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
    const auto known = reinterpret_cast<uintptr_t>(sub < kWarp ? keys_[0] : keys_[1]);
    const auto* const keys = reinterpret_cast<const std::byte*>(
        __shfl_sync(0xFFFFFFFFu, static_cast<unsigned long long>(known), sub % kWarp));
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
  const unsigned work = blockIdx.x * kDecodeWarps + warp;
  const unsigned num_jobs = launch.num_jobs();
  const unsigned index = work % num_jobs;
  const auto split = static_cast<int>(work / num_jobs);
  const AttentionProblem& problem = launch.problem;
  const RowJob job = launch.Job(index);
  Rows rows(problem, job, 0);
  const DecodeRange range = RangeOf(problem, job, split);
  const SegmentTiles<typename Kind::Kv> tiles(problem, job, range);
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
  const int64_t part = launch.PartOf(index, split);
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
constexpr int kWideRingBytes = 8 * 1024;  // of a warp
constexpr int kWideTiles = kAttentionSegmentTokens / kAttentionTileTokens;
constexpr int kOwnTiles = kWideTiles / kWideWarps;  // that a warp scores

// Memory of a block: a ring a warp, queries and the weights of all tiles as lanes have them, of
// each tile the rows' largest scores and sums of weights, and where tokens have scales those of V.
template <typename Kind>
struct WideShared {
  using Tile = TensorScores<Kind>::Tile;
  static constexpr int kSubTiles = TensorScores<Kind>::kSubTiles;
  static constexpr int kUnitTiles = 2;  // of V
  // What a warp adds: a slice of V, sixteen dimensions, if the head has so many.
  static constexpr int kSliceTileBytes = kSubTiles * Tile::kSliceBytes;
  static constexpr int kUnitBytes = Tile::kRingBytes > kUnitTiles* kSliceTileBytes
                                        ? Tile::kRingBytes
                                        : kUnitTiles* kSliceTileBytes;
  static constexpr int kTileScales = Kind::Kv::kHasTokenScales ? kAttentionTileTokens : 0;
  static constexpr size_t kBytes =
      size_t{kWideWarps} * (kWideRingBytes + kWarp * sizeof(uint4)) +
      kWideTiles * (kSubTiles * kWarp * sizeof(uint4) + 2 * kTensorRows * sizeof(float) +
                    kTileScales * sizeof(float));
  static_assert(Kind::kHeadDim <= kWideWarps * 16);
  __device__ static bool HasSlice(int warp) { return warp < Kind::kHeadDim / 16; }

  SharedPtr<uint4> queries;  // [step, lane]
  SharedPtr<uint4> weights;  // [tile, sub-tile, lane]
  SharedPtr<float> largest;  // [tile, row]
  SharedPtr<float> sums;     // [tile, row]
  SharedPtr<float> scales;   // [tile, token]
  __device__ WideShared()
      : queries(SharedCast<uint4>(SharedMemory() + kWideWarps * kWideRingBytes)),
        weights(queries + kWideWarps * kWarp),
        largest(SharedCast<float>(weights + kWideTiles * kSubTiles * kWarp)),
        sums(largest + kWideTiles * kTensorRows),
        scales(sums + kWideTiles * kTensorRows) {}
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
      if constexpr (Kind::Kv::kHasTokenScales) {  // Weights are multiplied with those of V.
        const int byte = static_cast<int>(threadIdx.x) % kWarp * 16;
        if (byte < Kind::Kv::kScaleBytes) {
          CopyAsync16(SharedCast<std::byte>(Shared().scales + sub * kKvSubTileTokens) + byte,
                      source.values + Kind::Kv::NumberBytes(Kind::kHeadDim) + byte, source.there);
        }
      }
      return;
    }
    if (!Shared::HasSlice(warp_)) return;
#pragma unroll 1
    for (int i = 0; i < kUnitTiles; ++i) {
      const int tile = (unit - kOwnTiles * kSubTiles) * kUnitTiles + i;
      if (tile < num_tiles_) CopyValues(tile, to + i * Shared::kSliceTileBytes);
    }
  }

 private:
  using Shared = WideShared<Kind>;
  using Tile = Shared::Tile;
  static constexpr int kSubTiles = Shared::kSubTiles;
  static constexpr int kUnitTiles = Shared::kUnitTiles;

  __device__ __forceinline__ void CopyValues(int tile, SharedPtr<std::byte> to) const {
    static_assert(Tile::kSlicePieces <= kWarp);
    const int piece = threadIdx.x % kWarp;
    const int from = Tile::SliceFrom(warp_, piece);
    const int at = Tile::SlicePieceAt(piece);
#pragma unroll
    for (int sub = 0; sub < kSubTiles; ++sub) {
      const auto source = tiles_.At(tile * kSubTiles + sub);
      if (Tile::kSlicePieces < kWarp && piece >= Tile::kSlicePieces) continue;
      CopyAsync16(to + sub * Tile::kSliceBytes + at, source.values + from, source.there);
    }
  }

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
  using Tile = Scores::Tile;
  constexpr int kRowsOfLane = Scores::kRowsOfLane;
  constexpr int kUnitTiles = WideShared<Kind>::kUnitTiles;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const unsigned num_jobs = launch.num_jobs();
  const unsigned index = blockIdx.x % num_jobs;
  const auto split = static_cast<int>(blockIdx.x / num_jobs);
  const AttentionProblem& problem = launch.problem;
  const RowJob job = launch.Job(index);
  const DecodeRange range = RangeOf(problem, job, split);
  const WideUnits<Kind> units(problem, job, range);
  WaitForLaunchBefore();
  if (range.begin >= range.end) return;
  WarpRing<kWideRingBytes, WideShared<Kind>::kUnitBytes> ring(units);
  const WideShared<Kind> shared;

  // All warps have the same queries.
  Scores scores(problem, job, 0);
  static_assert(Scores::kSteps <= kWideWarps);
  if (warp < Scores::kSteps) shared.queries[warp * kWarp + lane] = scores.Query(warp);
  __syncthreads();
  // The first tile's scores are where both tiles' weights will be.
  static_assert(kOwnTiles == 2 && Scores::kParked == kOwnTiles * Scores::kSubTiles);
  const SharedPtr<uint4> own_weights = shared.weights + warp * Scores::kParked * kWarp + lane;
  const SharedPtr<float4> parked = SharedCast<float4>(own_weights);
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
  Scores now(problem, job, 0);
  now.Unpark(parked);
#pragma unroll 1
  for (int own = 0; own < kOwnTiles; ++own) {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int at = (warp * kOwnTiles + own) * kTensorRows + Scores::RowOf(i);
      Raise(shared.largest[at], &max[i]);
      const float sum = now.Weigh(i, max[i]);
      if (lane % 4 == 0) shared.sums[at] = sum;
    }
#pragma unroll
    for (int sub = 0; sub < Scores::kSubTiles; ++sub) {
      const int at = ((warp * kOwnTiles + own) * Scores::kSubTiles + sub) * kKvSubTileTokens;
      uint32_t weights[4];
      now.GetWeights(sub, shared.scales + at, weights);
      own_weights[(own * Scores::kSubTiles + sub) * kWarp] =
          make_uint4(weights[0], weights[1], weights[2], weights[3]);
    }
    now.CopyScores(scores);
  }
  __syncthreads();
  if (!WideShared<Kind>::HasSlice(warp)) return;

  float sum[kRowsOfLane] = {};
  float out[2][4] = {};
#pragma unroll
  for (int i = 0; i < kRowsOfLane; ++i) max[i] = -__builtin_inff();
#pragma unroll 1
  for (int unit = 0; unit * kUnitTiles * kAttentionTileTokens < range.end - range.begin; ++unit) {
    const SharedPtr<std::byte> v = ring.Take();
#pragma unroll
    for (int of_unit = 0; of_unit < kUnitTiles; ++of_unit) {
      const int tile = unit * kUnitTiles + of_unit;
      const int position = range.begin + tile * kAttentionTileTokens;
      if (position >= range.end) break;
#pragma unroll
      for (int i = 0; i < kRowsOfLane; ++i) {
        const int at = tile * kTensorRows + Scores::RowOf(i);
        const float rescale = Raise(shared.largest[at], &max[i]);
        sum[i] = sum[i] * rescale + shared.sums[at];
        Rescale(out, i, rescale);
      }
#pragma unroll
      for (int sub = 0; sub < Scores::kSubTiles; ++sub) {
        const uint4 four = shared.weights[(tile * Scores::kSubTiles + sub) * kWarp + lane];
        const uint32_t weights[4] = {four.x, four.y, four.z, four.w};
        const KeptPairs kept(range.end - position - sub * kKvSubTileTokens);
        const SharedPtr<std::byte> slice =
            v + of_unit * WideShared<Kind>::kSliceTileBytes + sub * Tile::kSliceBytes;
        AddProducts<typename Kind::Kv>(out, weights, Tile::SliceValues(slice), kept);
      }
    }
    ring.Leave(units);
  }

  const int64_t part = launch.PartOf(index, split);
#pragma unroll
  for (int i = 0; i < kRowsOfLane; ++i) {
    const int row = Scores::RowOf(i);
    if (!scores.Has(row)) continue;
    const int dim = DimOf(warp);
    const float4 four = RunOf(out, i);
    if (range.whole) {
      StoreRun(problem, scores.ElementOf(row) + dim, four, sum[i]);
    } else {
      *reinterpret_cast<float4*>(launch.accumulators + (part + row) * Kind::kHeadDim + dim) = four;
    }
    if (!range.whole && warp == 0 && lane % 4 == 0) launch.partials[part + row] = {max[i], sum[i]};
  }
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

struct DecodePlan {
  int row_chunks;
  int chunk_rows;
  int64_t jobs;
  int64_t splits;
};
DecodePlan PlanDecode(const HostDecodeAttentionArgs& args) {
  const int group = args.num_heads / args.kv.num_kv_heads;
  const int row_chunks = CeilDiv(group, kTensorRows);
  return {row_chunks, std::min(group, kTensorRows),
          args.num_sequences * args.kv.num_kv_heads * row_chunks, MostSegments(args)};
}

int64_t NumParts(const DecodePlan& plan) { return plan.jobs * plan.splits * plan.chunk_rows; }

}  // namespace

bool HasTensorAttention(const KvTileShape& shape, DType compute_dtype,
                        const ProcessorLimits& limits) {
  const int head_dim = shape.head_dim;
  const bool has_kernels = compute_dtype == DType::kBF16 && shape.type != KvType::kF32 &&
                           (head_dim == 64 || head_dim == 96 || head_dim == 128);
  const auto shared_bytes = [&]<typename Kv>() {  // Decode has the same for all heads.
    return std::max(TensorPrefillSharedBytes(shape),
                    WideShared<RowKind<Kv, 128, true, false>>::kBytes);
  };
  return has_kernels && ByTensorKv(shape.type, shared_bytes) <= limits.max_shared_bytes;
}

size_t TensorDecodeScratchBytes(const HostDecodeAttentionArgs& args) {
  const DecodePlan plan = PlanDecode(args);
  if (plan.splits == 1) return 0;
  return static_cast<size_t>(NumParts(plan)) *
         (sizeof(RowPartial) + sizeof(float) * args.kv.shape.head_dim);
}

cudaError_t TensorDecodeAttention(const HostDecodeAttentionArgs& args, void* scratch,
                                  const ProcessorLimits& limits, cudaStream_t stream) {
  const DecodePlan plan = PlanDecode(args);
  auto* const accumulators = static_cast<float*>(scratch);
  const DecodeLaunch launch{.problem = ProblemOf(args),
                            .num_tokens = args.num_tokens,
                            .num_sequences = args.num_sequences,
                            .row_chunks = plan.row_chunks,
                            .chunk_rows = plan.chunk_rows,
                            .splits = plan.splits,
                            .partials = reinterpret_cast<RowPartial*>(
                                accumulators + NumParts(plan) * args.kv.shape.head_dim),
                            .accumulators = accumulators};
  const int64_t segments = plan.jobs * plan.splits;
  const bool wide = segments <= int64_t{kWideMost} * limits.num_processors;
  const cudaError_t error = ByKind</*kOneToken=*/true>(args, [&]<typename Kind>() {
    return wide ? Launch(WideDecodeKernel<Kind>,
                         {.blocks = segments,
                          .threads = kWideWarps * kWarp,
                          .shared_bytes = WideShared<Kind>::kBytes},
                         stream, launch)
                : Launch(TensorDecodeKernel<Kind>,
                         {.blocks = CeilDiv<int64_t>(segments, kDecodeWarps),
                          .threads = kDecodeWarps * kWarp,
                          .shared_bytes = size_t{kDecodeWarps} * kDecodeRingBytes},
                         stream, launch);
  });
  if (error != cudaSuccess) return error;
  return MergeSplits<DType::kBF16, PowerMerge>(launch, plan.jobs, stream);
}

}  // namespace tandem
