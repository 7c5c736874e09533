// Prefill attention in bf16 on the tensor cores (tensor_rows.h). A block has rows of a sequence and
// KV head, a warp sixteen of them; tiles go through a ring that its warps share.

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/tensor_tiles.h"

namespace tandem {
namespace {

constexpr int kWarp = 32;
constexpr int kPrefillWarps = 8;
constexpr int kPrefillThreads = kPrefillWarps * kWarp;
constexpr int kPrefillStages = 4;

struct TensorPrefillLaunch {
  PrefillLaunch jobs;
  float4* totals;  // SegmentTotals
};

// A stage has a tile of K, or of V.
template <typename Tile>
constexpr int kUnitBytes = kAttentionTileTokens / kKvSubTileTokens* Tile::kRingBytes;
template <typename Tile>
constexpr size_t kPrefillSharedBytes = size_t{kPrefillStages} * kUnitBytes<Tile>;
constexpr int kPrefillRows = kPrefillWarps * kTensorRows;

// One job's rows over all that they see.
template <typename Kind>
__device__ __forceinline__ void PrefillRows(const TensorPrefillLaunch& launch, const RowJob& job) {
  using Rows = TensorRows<Kind>;
  using Tile = Rows::Tile;
  const AttentionProblem& problem = launch.jobs.problem;
  const int thread = threadIdx.x;
  const int warp = thread / kWarp;
  Rows rows(problem, job, warp * kTensorRows);
  const SharedPtr<std::byte> ring = SharedMemory();
  uint4 queries[Rows::kSteps];
  const auto load_queries = [&] {
#pragma unroll
    for (int step = 0; step < Rows::kSteps; ++step) queries[step] = rows.Query(step);
  };
  load_queries();
  const SeenByJob seen(problem, job);
  const int begin = seen.begin;
  const int visible = seen.end;
  const int num_units = (visible - begin + kAttentionTileTokens - 1) / kAttentionTileTokens * 2;
  // Two warps copy a sub-tile of each tile; its block is known a tile before.
  const int own_sub = warp / 2;
  int position = begin + own_sub * kKvSubTileTokens;
  SubTiles at(problem, job, position);
  const int32_t* const table = problem.block_table + job.sequence * problem.max_blocks;
  bool next_there = SeesSubTile(position, seen.first, visible);
  int block = next_there ? table[at.index()] : 0;
  const std::byte* from = problem.kv.base;
  bool there = false;
  const auto copy = [&](int unit) {
    if (unit < num_units) {
      const bool is_value = unit % 2 == 1;
      if (!is_value) {
        there = next_there;
        from = at.In<typename Kind::Kv>(block);
        position += kAttentionTileTokens;
        at.Advance(kAttentionTileTokens);
        next_there = SeesSubTile(position, seen.first, visible);
        block = next_there ? table[at.index()] : 0;
      }
      CopySubTile<Tile, 2 * kWarp>(
          from + (is_value ? ToValues(problem.kv) : 0), there, is_value, thread % (2 * kWarp),
          ring + unit % kPrefillStages * kUnitBytes<Tile> + own_sub * Tile::kRingBytes);
    }
    CommitCopies();
  };
  __syncthreads();  // Everybody has left the ring.
  for (int unit = 0; unit < kPrefillStages - 1; ++unit) copy(unit);

  // This warp's rows see positions [sees_first, sees_end), all of them [all_first, all_end).
  const int last_row = Least(kTensorRows, job.num_rows - warp * kTensorRows) - 1;
  const int sees_first = rows.FirstVisibleOf(0);
  const int sees_end = last_row < 0 ? 0 : rows.VisibleOf(last_row);
  const int all_first = last_row < 0 ? 0 : rows.FirstVisibleOf(last_row);
  const int all_end = rows.VisibleOf(0);
  const auto next = [&](int unit) {
    WaitForCopies<kPrefillStages - 2>();
    __syncthreads();
    copy(unit + kPrefillStages - 1);  // Where the unit before this one was.
    return ring + unit % kPrefillStages * kUnitBytes<Tile>;
  };

  SegmentTotals<Rows, kPrefillThreads> totals(launch.totals);
  rows.Begin();
  for (int unit = 0; unit < num_units; unit += 2) {
    const int tile = begin + unit / 2 * kAttentionTileTokens;
    const bool sees = tile < sees_end && tile + kAttentionTileTokens > sees_first;
    const SharedPtr<std::byte> k = next(unit);
    if (sees) {
#pragma unroll
      for (int sub = 0; sub < Rows::kSubTiles; ++sub) {
        rows.Scores(k + sub * Tile::kRingBytes, sub, [&](int step) { return queries[step]; });
      }
      rows.Softmax(tile, tile < all_first || tile + kAttentionTileTokens > all_end);
    }
    const SharedPtr<std::byte> v = next(unit + 1);
    if (sees) {
#pragma unroll
      for (int sub = 0; sub < Rows::kSubTiles; ++sub) {
        rows.AddValues(v + sub * Tile::kRingBytes, sub, visible - tile - sub * kKvSubTileTokens);
      }
    }
    // Behind a segment: what was there is merged with it, left to right.
    const int behind = tile + kAttentionTileTokens;
    const bool more = behind < visible;
    if (more && behind % kAttentionSegmentTokens != 0) continue;
    totals.MergeInto(&rows);
    if (!more) break;
    totals.Keep(&rows);
    rows.Begin();
    load_queries();  // Their registers were wanted.
  }
  rows.Finish(problem);
}

template <typename Kind>
__global__ void TANDEM_THREADS(kPrefillThreads, 1) TensorPrefillKernel(TensorPrefillLaunch launch) {
  BeginLaunch();
  ForEachPrefillJob<kPrefillRows>(launch.jobs,
                                  [&](const RowJob& job) { PrefillRows<Kind>(launch, job); });
}

}  // namespace

size_t TensorPrefillScratchBytes(const KvTileShape& shape, const ProcessorLimits& limits) {
  const size_t numbers = size_t{kPrefillRows} * static_cast<size_t>(shape.head_dim);
  return static_cast<size_t>(limits.num_processors) *
         (numbers * sizeof(float) + kPrefillThreads * sizeof(float4));
}

cudaError_t TensorPrefillAttention(const HostPrefillAttentionArgs& args, void* scratch,
                                   const ProcessorLimits& limits, cudaStream_t stream) {
  if (limits.has_warpgroup_products && args.kv.shape.type == KvType::kBF16) {
    return WgmmaPrefillAttention(args, scratch, limits, stream);
  }
  const TensorPrefillLaunch launch{.jobs = PrefillLaunchOf(args),
                                   .totals = static_cast<float4*>(scratch)};
  return ByKind</*kOneToken=*/false>(args, [&]<typename Kind>() {
    constexpr size_t kSharedBytes =
        kPrefillSharedBytes<TensorKv<typename Kind::Kv, Kind::kHeadDim>>;
    static_assert(kSharedBytes <= kLeastSharedBytes);
    return Launch(TensorPrefillKernel<Kind>,
                  {.blocks = args.num_sequences == 0 ? 0 : limits.num_processors,
                   .threads = kPrefillThreads,
                   .shared_bytes = kSharedBytes},
                  stream, launch);
  });
}

}  // namespace tandem
