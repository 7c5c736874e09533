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
constexpr int kDecodeWarps = 4;
constexpr int kDecodeBlocks = 2;             // of a processor
constexpr int kDecodeRingBytes = 24 * 1024;  // of a warp

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

// The sub-tiles of a segment, found by any lane of a warp that has all entries of its block table.
class SegmentTiles {
 public:
  __device__ SegmentTiles(const AttentionProblem& problem, const RowJob& job,
                          const DecodeRange& range)
      : range_(range), first_(problem, job, range.begin) {
    static_assert(kAttentionSegmentTokens / kKvSubTileTokens <= 2 * kWarp);
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int entry = first_.index() + i * kWarp + lane;
      const int64_t tokens = problem.kv.shape.block_tokens;
      const bool there = entry * tokens < range.end && (entry + 1) * tokens > range.first_visible;
      blocks_[i] = there ? problem.block_table[job.sequence * problem.max_blocks + entry] : 0;
    }
  }

  // A sub-tile, if any row sees some of it.
  struct Source {
    const std::byte* keys;
    const std::byte* values;
    bool there;
  };
  // By the whole warp.
  __device__ Source At(int tile, int sub) const {
    const int offset = tile * kAttentionTileTokens + sub * kKvSubTileTokens;
    const bool there = SeesSubTile(range_.begin + offset, range_.first_visible, range_.end);
    SubTiles at = first_;
    at.Advance(offset);
    const int entry = at.index() - first_.index();
    const int low = __shfl_sync(0xFFFFFFFFu, blocks_[0], entry % kWarp);
    const int high = __shfl_sync(0xFFFFFFFFu, blocks_[1], entry % kWarp);
    const std::byte* const keys = at.In(!there ? 0 : entry < kWarp ? low : high);
    return {keys, keys + at.ToValues(), there};
  }

 private:
  const DecodeRange& range_;
  const SubTiles first_;
  int blocks_[2];  // two entries a lane
};

// A ring of a warp's own in shared memory, of units that copy(unit, to) brings, if there are so
// many.
template <int kUnitBytes>
class WarpRing {
 public:
  static constexpr int kStages = kDecodeRingBytes / kUnitBytes;

  template <typename Copy>
  __device__ explicit WarpRing(const Copy& copy)
      : ring_(SharedMemory() + static_cast<int>(threadIdx.x / kWarp) * kDecodeRingBytes) {
    for (int i = 0; i < kStages; ++i) Fill(i, copy);
  }

  // The next unit is there; whoever has read it lets another take its place.
  __device__ SharedPtr<std::byte> Take() const {
    WaitForCopies<kStages - 1>();
    __syncwarp();
    return ring_ + slot_ * kUnitBytes;
  }
  template <typename Copy>
  __device__ void Leave(const Copy& copy) {
    __syncwarp();
    Fill(slot_, copy);
    slot_ = slot_ + 1 == kStages ? 0 : slot_ + 1;
  }

 private:
  template <typename Copy>
  __device__ void Fill(int slot, const Copy& copy) {
    copy(unit_++, ring_ + slot * kUnitBytes);
    CommitCopies();
  }

  const SharedPtr<std::byte> ring_;
  int unit_ = 0;
  int slot_ = 0;
};

// ---- many segments ----

// One warp a (segment, sequence, KV head, chunk of its group).
template <int kHeadDim>
__global__ void TANDEM_THREADS(kDecodeWarps* kWarp, kDecodeBlocks)
    TensorDecodeKernel(DecodeLaunch launch) {
  BeginLaunch();
  using Rows = TensorRows<kHeadDim>;
  constexpr int kTileUnits = 2 * Rows::kSubTiles;  // of K, then of V
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t work = int64_t{blockIdx.x} * kDecodeWarps + warp;
  const int64_t num_jobs = launch.num_jobs();
  if (work >= num_jobs * launch.splits) return;
  const int64_t index = work % num_jobs;
  const auto split = static_cast<int>(work / num_jobs);
  const AttentionProblem& problem = launch.problem;
  const RowJob job = launch.Job<kTensorRows>(index);
  Rows rows(problem, job, 0);
  const DecodeRange range = RangeOf(problem, job, split);
  if (range.begin >= range.end) return;

  const SegmentTiles tiles(problem, job, range);
  const int num_units = NumTiles(range) * kTileUnits;
  const auto copy = [&](int unit, SharedPtr<std::byte> to) {
    if (unit >= num_units) return;
    const int of_tile = unit % kTileUnits;
    const SegmentTiles::Source source = tiles.At(unit / kTileUnits, of_tile % Rows::kSubTiles);
    const bool is_value = of_tile >= Rows::kSubTiles;
    CopySubTile<kHeadDim, kWarp>(is_value ? source.values : source.keys, source.there, is_value,
                                 lane, to);
  };
  WarpRing<Rows::kSubTileBytes> ring(copy);

  uint4 queries[Rows::kSteps];
#pragma unroll
  for (int step = 0; step < Rows::kSteps; ++step) queries[step] = rows.Query(step);
  rows.Begin();
  for (int tile = range.begin; tile < range.end; tile += kAttentionTileTokens) {
#pragma unroll
    for (int sub = 0; sub < Rows::kSubTiles; ++sub) {
      rows.Scores(ring.Take(), sub, queries);
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
  const int64_t part = launch.PartOf<kTensorRows>(index, split);
  rows.ForEachRun([&](int i, int run, const float4& four) {
    const int row = Rows::RowOf(i);
    if (!rows.Has(row)) return;
    *reinterpret_cast<float4*>(launch.accumulators + (part + row) * kHeadDim + DimOf(run)) = four;
  });
#pragma unroll
  for (int i = 0; i < Rows::kRowsOfLane; ++i) {
    if (lane % 4 == 0) launch.partials[part + Rows::RowOf(i)] = {rows.max(i), rows.sum(i)};
  }
}

// ---- few segments ----

// What a warp has of the output: dimensions of every fourth sixteen, and so of V.
template <int kHeadDim>
struct WideSlice {
  static constexpr int kRuns = (kHeadDim / 16 + kDecodeWarps - 1) / kDecodeWarps;
  static constexpr int kPieces = kRuns * 4;  // of 16 bytes, for two positions
  static constexpr int kSubTileBytes = kKvSubTileTokens / 2 * kPieces * 16;
  static constexpr int kTileBytes = kSubTileBytes * (kAttentionTileTokens / kKvSubTileTokens);
  __device__ static int RunOfHead(int warp, int run) { return warp + run * kDecodeWarps; }
  __device__ static bool Has(int warp, int run) { return RunOfHead(warp, run) < kHeadDim / 16; }
  // Where a piece of a pair of positions lies: so that lanes find theirs in different banks.
  __device__ static int PieceAt(int pair, int piece) {
    if constexpr (kRuns == 1) {
      return (pair / 2 + pair % 2 * 4) * kPieces * 16 + (piece ^ (pair / 4 * 2)) * 16;
    }
    return pair * kPieces * 16 + (piece ^ pair) * 16;
  }
};

// Memory of a block: a ring a warp, the weights of kDecodeWarps tiles as lanes have them, and of
// each tile the rows' largest scores and sums of weights.
template <int kHeadDim>
struct WideShared {
  static constexpr int kUnitBytes =
      TensorScores<kHeadDim>::kSubTileBytes > WideSlice<kHeadDim>::kTileBytes
          ? TensorScores<kHeadDim>::kSubTileBytes
          : WideSlice<kHeadDim>::kTileBytes;
  static constexpr int kSubTiles = TensorScores<kHeadDim>::kSubTiles;
  SharedPtr<uint4> weights;  // [tile, sub-tile, lane]
  SharedPtr<float> largest;  // [tile, row]
  SharedPtr<float> sums;     // [tile, row]
  __device__ WideShared()
      : weights(SharedCast<uint4>(SharedMemory() + kDecodeWarps * kDecodeRingBytes)),
        largest(SharedCast<float>(weights + kDecodeWarps * kSubTiles * kWarp)),
        sums(largest + kDecodeWarps * kTensorRows) {}
};
constexpr size_t kWideSharedBytes =
    size_t{kDecodeWarps} *
    (kDecodeRingBytes + kAttentionTileTokens / kKvSubTileTokens * kWarp * sizeof(uint4) +
     2 * kTensorRows * sizeof(float));

// What comes through a warp's ring, in rounds: of every kDecodeWarps tiles sub-tiles of K of its
// own, then its slice of V of each.
template <int kHeadDim>
class WideUnits {
 public:
  using Slice = WideSlice<kHeadDim>;

  __device__ WideUnits(const AttentionProblem& problem, const RowJob& job, const DecodeRange& range)
      : warp_(threadIdx.x / kWarp),
        lane_(threadIdx.x % kWarp),
        num_tiles_(NumTiles(range)),
        tiles_(problem, job, range) {}

  __device__ void operator()(int unit, SharedPtr<std::byte> to) const {
    const int of_round = unit % (kSubTiles + kDecodeWarps);
    const int first_tile = unit / (kSubTiles + kDecodeWarps) * kDecodeWarps;
    if (first_tile >= num_tiles_) return;
    if (of_round < kSubTiles) {
      CopyKeys(first_tile + warp_, of_round, to);
    } else if (first_tile + of_round - kSubTiles < num_tiles_) {
      CopyValues(first_tile + of_round - kSubTiles, to);
    }
  }

 private:
  static constexpr int kSubTiles = TensorScores<kHeadDim>::kSubTiles;

  __device__ void CopyKeys(int tile, int sub, SharedPtr<std::byte> to) const {
    const SegmentTiles::Source source = tiles_.At(tile, sub);
    CopySubTile<kHeadDim, kWarp>(source.keys, source.there, /*is_value=*/false, lane_, to);
  }
  __device__ void CopyValues(int tile, SharedPtr<std::byte> to) const {
#pragma unroll
    for (int sub = 0; sub < kSubTiles; ++sub) {
      const SegmentTiles::Source source = tiles_.At(tile, sub);
#pragma unroll
      for (int i = 0; i < kKvSubTileTokens / 2 * Slice::kPieces; i += kWarp) {
        const int pair = (i + lane_) / Slice::kPieces;
        const int piece = (i + lane_) % Slice::kPieces;
        const bool there = source.there && Slice::Has(warp_, piece / 4);
        const int from = there ? Slice::RunOfHead(warp_, piece / 4) * 4 + piece % 4 : 0;
        CopyAsync16(to + sub * Slice::kSubTileBytes + Slice::PieceAt(pair, piece),
                    source.values + pair * kHeadDim * 4 + from * 16, there);
      }
    }
  }

  const int warp_;
  const int lane_;
  const int num_tiles_;
  const SegmentTiles tiles_;
};

// One block a (segment, sequence, KV head, chunk of its group). Its warps share out tiles to score,
// and dimensions to add: scores of kDecodeWarps tiles at once, then values of one after the other.
template <int kHeadDim>
__global__ void TANDEM_THREADS(kDecodeWarps* kWarp, kDecodeBlocks)
    WideDecodeKernel(DecodeLaunch launch) {
  BeginLaunch();
  using Scores = TensorScores<kHeadDim>;
  using Slice = WideSlice<kHeadDim>;
  constexpr int kRowsOfLane = Scores::kRowsOfLane;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t num_jobs = launch.num_jobs();
  const int64_t index = blockIdx.x % num_jobs;
  const auto split = static_cast<int>(blockIdx.x / num_jobs);
  const AttentionProblem& problem = launch.problem;
  const RowJob job = launch.Job<kTensorRows>(index);
  const DecodeRange range = RangeOf(problem, job, split);
  if (range.begin >= range.end) return;
  const WideUnits<kHeadDim> units(problem, job, range);
  WarpRing<WideShared<kHeadDim>::kUnitBytes> ring(units);
  Scores scores(problem, job, 0);
  uint4 queries[Scores::kSteps];
#pragma unroll
  for (int step = 0; step < Scores::kSteps; ++step) queries[step] = scores.Query(step);

  const WideShared<kHeadDim> shared;
  float max[kRowsOfLane] = {-__builtin_inff(), -__builtin_inff()};
  float sum[kRowsOfLane] = {};
  float out[Slice::kRuns][2][4] = {};
  for (int round = range.begin; round < range.end; round += kDecodeWarps * kAttentionTileTokens) {
    const int own = round + warp * kAttentionTileTokens;
#pragma unroll
    for (int sub = 0; sub < Scores::kSubTiles; ++sub) {
      scores.Scores(ring.Take(), sub, queries);
      ring.Leave(units);
    }
    float largest[kRowsOfLane];
    scores.Prepare(own, own < range.first_visible || own + kAttentionTileTokens > range.end,
                   largest);
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      if (lane % 4 == 0) shared.largest[warp * kTensorRows + Scores::RowOf(i)] = largest[i];
    }
    __syncthreads();
    // The running maxima at each tile, and by what they rescale what was before.
    float rescale[kDecodeWarps][kRowsOfLane];
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      float own_max = 0.0f;
#pragma unroll
      for (int tile = 0; tile < kDecodeWarps; ++tile) {
        rescale[tile][i] = Raise(shared.largest[tile * kTensorRows + Scores::RowOf(i)], &max[i]);
        own_max = tile == warp ? max[i] : own_max;
      }
      const float of_tile = scores.template Weigh<true>(i, own_max);
      if (lane % 4 == 0) shared.sums[warp * kTensorRows + Scores::RowOf(i)] = of_tile;
    }
#pragma unroll
    for (int sub = 0; sub < Scores::kSubTiles; ++sub) {
      const uint32_t(&weights)[4] = scores.Weights(sub);
      shared.weights[(warp * Scores::kSubTiles + sub) * kWarp + lane] =
          make_uint4(weights[0], weights[1], weights[2], weights[3]);
    }
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kDecodeWarps; ++tile) {
      const int position = round + tile * kAttentionTileTokens;
      if (position >= range.end) break;
#pragma unroll
      for (int i = 0; i < kRowsOfLane; ++i) {
        const float of_tile = shared.sums[tile * kTensorRows + Scores::RowOf(i)];
        sum[i] = sum[i] * rescale[tile][i] + of_tile;
#pragma unroll
        for (int run = 0; run < Slice::kRuns; ++run) Rescale(out[run], i, rescale[tile][i]);
      }
      const SharedPtr<std::byte> v = ring.Take();
#pragma unroll
      for (int sub = 0; sub < Scores::kSubTiles; ++sub) {
        const uint4 four = shared.weights[(tile * Scores::kSubTiles + sub) * kWarp + lane];
        const uint32_t weights[4] = {four.x, four.y, four.z, four.w};
        const KeptPairs kept(range.end - position - sub * kKvSubTileTokens);
        const SharedPtr<std::byte> slice = v + sub * Slice::kSubTileBytes + lane / 4 % 2 * 8;
#pragma unroll
        for (int run = 0; run < Slice::kRuns; ++run) {
          const int piece = run * 4 + lane / 8;
          AddProducts(out[run], weights,
                      SharedCast<uint2>(slice + Slice::PieceAt(lane % 4 * 2, piece))[0],
                      SharedCast<uint2>(slice + Slice::PieceAt(lane % 4 * 2 + 1, piece))[0], kept);
        }
      }
      ring.Leave(units);
    }
  }

  const int64_t part = launch.PartOf<kTensorRows>(index, split);
#pragma unroll
  for (int i = 0; i < kRowsOfLane; ++i) {
    const int row = Scores::RowOf(i);
    if (!scores.Has(row)) continue;
#pragma unroll
    for (int run = 0; run < Slice::kRuns; ++run) {
      if (!Slice::Has(warp, run)) break;
      const int dim = DimOf(Slice::RunOfHead(warp, run));
      const float4 four = RunOf(out[run], i);
      if (range.whole) {
        StoreRun(problem, scores.ElementOf(row) + dim, four, sum[i]);
      } else {
        *reinterpret_cast<float4*>(launch.accumulators + (part + row) * kHeadDim + dim) = four;
      }
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
  int64_t jobs;
  int64_t splits;
};
DecodePlan PlanDecode(const HostDecodeAttentionArgs& args) {
  const int row_chunks = CeilDiv(args.num_heads / args.kv.num_kv_heads, kTensorRows);
  return {row_chunks, args.num_sequences * args.kv.num_kv_heads * row_chunks, MostSegments(args)};
}

int64_t NumParts(const DecodePlan& plan) { return plan.jobs * plan.splits * kTensorRows; }

}  // namespace

bool HasTensorAttention(const KvTileShape& shape, const ProcessorLimits& limits) {
  const int head_dim = shape.head_dim;
  return shape.type == KvType::kBF16 && (head_dim == 64 || head_dim == 96 || head_dim == 128) &&
         std::max(TensorPrefillSharedBytes(head_dim), kWideSharedBytes) <= limits.max_shared_bytes;
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
                            .splits = plan.splits,
                            .partials = reinterpret_cast<RowPartial*>(
                                accumulators + NumParts(plan) * args.kv.shape.head_dim),
                            .accumulators = accumulators};
  const int64_t segments = plan.jobs * plan.splits;
  const bool wide = segments <= int64_t{kDecodeBlocks} * limits.num_processors;
  const cudaError_t error = ByHeadDim(args.kv.shape.head_dim, [&]<int kHeadDim>() {
    return wide ? Launch(WideDecodeKernel<kHeadDim>,
                         {.blocks = segments,
                          .threads = kDecodeWarps * kWarp,
                          .shared_bytes = kWideSharedBytes},
                         stream, launch)
                : Launch(TensorDecodeKernel<kHeadDim>,
                         {.blocks = CeilDiv<int64_t>(segments, kDecodeWarps),
                          .threads = kDecodeWarps * kWarp,
                          .shared_bytes = size_t{kDecodeWarps} * kDecodeRingBytes},
                         stream, launch);
  });
  if (error != cudaSuccess) return error;
  return MergeSplits<Bf16Kv, kTensorRows, PowerMerge>(launch, plan.jobs, stream);
}

}  // namespace tandem
