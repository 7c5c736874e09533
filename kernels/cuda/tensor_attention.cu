// Decode and prefill attention in bf16 on the tensor cores (tensor_rows.h).
//
//   decode   A warp has a segment of a sequence and KV head, all of its query heads, and a ring of
//            sub-tiles of its own in shared memory, as deep as there is room. A second launch
//            merges segments.
//   prefill  A block has rows of a sequence and KV head, a warp sixteen of them; tiles go through a
//            ring that its warps share.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/tensor_rows.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int kWarp = 32;
constexpr int kDecodeWarps = 4;
constexpr int kDecodeBlocks = 2;             // of a processor
constexpr int kDecodeRingBytes = 24 * 1024;  // of a warp
constexpr size_t kDecodeSharedBytes = size_t{kDecodeWarps} * kDecodeRingBytes;

// Where a sequence's sub-tiles of one KV head are, from the one with `position` on.
class SubTiles {
 public:
  __device__ SubTiles(const AttentionProblem& problem, const RowJob& job, int position)
      : problem_(problem),
        block_tokens_(problem.kv.shape.block_tokens),
        index_(position / block_tokens_),
        offset_(position - index_ * block_tokens_),
        base_(problem.kv.base + problem.kv.layer_offset_bytes +
              static_cast<size_t>(job.kv_head) * problem.kv.tile_bytes) {}

  // So many positions on.
  __device__ void Advance(int tokens) {
    for (offset_ += tokens; offset_ >= block_tokens_; offset_ -= block_tokens_) ++index_;
  }
  __device__ int index() const { return index_; }  // in the block table
  // The sub-tile of K, in `block`.
  template <int kHeadDim>
  __device__ const std::byte* In(int block) const {
    return base_ + static_cast<size_t>(block) * problem_.kv.block_stride_bytes +
           static_cast<size_t>(offset_ / kKvSubTileTokens) * TensorRows<kHeadDim>::kSubTileBytes;
  }
  // From there to V.
  __device__ size_t ToValues() const {
    return static_cast<size_t>(problem_.kv.num_kv_heads) * problem_.kv.tile_bytes;
  }

 private:
  const AttentionProblem& problem_;
  const int block_tokens_;
  int index_;
  int offset_;
  const std::byte* const base_;
};

// A sub-tile by kThreads threads, or zeros where no row of the job sees any of it.
template <int kHeadDim, int kThreads>
__device__ __forceinline__ void CopySubTile(const std::byte* from, bool there, bool is_value,
                                            int thread, SharedPtr<std::byte> to) {
  using Rows = TensorRows<kHeadDim>;
#pragma unroll
  for (int i = 0; i < Rows::kSubTilePieces; i += kThreads) {
    const int piece = i + thread;
    if (Rows::kSubTilePieces % kThreads != 0 && piece >= Rows::kSubTilePieces) break;
    CopyAsync16(to + Rows::PieceAt(is_value, piece), from + piece * 16, there);
  }
}

// ---- decode ----

struct TensorDecodeLaunch {
  AttentionProblem problem;
  const int32_t* num_tokens;  // [S]
  int64_t num_sequences;      // S
  int row_chunks;             // of a KV head's group
  int64_t splits;             // segments that a sequence may have
  RowPartial* partials;       // [S, G, chunk, split, 16]
  float* accumulators;        // [the same, D]

  // `index` counts chunks, KV heads and sequences.
  __device__ RowJob Job(int64_t index) const {
    const int group = problem.num_heads / problem.kv.num_kv_heads;
    const int64_t heads = index / row_chunks;
    const int64_t sequence = heads / problem.kv.num_kv_heads;
    const int first = static_cast<int>(index % row_chunks) * kTensorRows;
    return {.sequence = sequence,
            .query_start = sequence,
            .num_cached = num_tokens[sequence] - 1,
            .kv_head = static_cast<int>(heads % problem.kv.num_kv_heads),
            .first_row = first,
            .num_rows = group - first < kTensorRows ? group - first : kTensorRows};
  }
  __device__ int64_t num_jobs() const {
    return num_sequences * problem.kv.num_kv_heads * row_chunks;
  }
};

template <int kHeadDim>
constexpr int DecodeStages() {
  return kDecodeRingBytes / TensorRows<kHeadDim>::kSubTileBytes;
}

// One warp a (segment, sequence, KV head, chunk of its group).
template <int kHeadDim>
__global__ void TANDEM_THREADS(kDecodeWarps* kWarp, kDecodeBlocks)
    TensorDecodeKernel(TensorDecodeLaunch launch) {
  BeginLaunch();
  using Rows = TensorRows<kHeadDim>;
  constexpr int kStages = DecodeStages<kHeadDim>();
  constexpr int kTileUnits = 2 * Rows::kSubTiles;  // of K, then of V
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t work = int64_t{blockIdx.x} * kDecodeWarps + warp;
  const int64_t num_jobs = launch.num_jobs();
  if (work >= num_jobs * launch.splits) return;
  const int64_t index = work % num_jobs;
  const auto split = static_cast<int>(work / num_jobs);
  const AttentionProblem& problem = launch.problem;
  const RowJob job = launch.Job(index);
  Rows rows(problem, job, 0);
  const int visible = job.num_cached + 1;
  const auto first_visible = static_cast<int>(FirstVisible(visible, problem.window));
  const int segment = first_visible / kAttentionSegmentTokens + split;
  const int segment_begin = segment * kAttentionSegmentTokens;
  if (segment_begin >= visible) return;
  const int first_tile = first_visible / kAttentionTileTokens * kAttentionTileTokens;
  const int begin = first_tile > segment_begin ? first_tile : segment_begin;
  const int segment_end = segment_begin + kAttentionSegmentTokens;
  const int end = segment_end < visible ? segment_end : visible;

  const SharedPtr<std::byte> ring = SharedMemory() + warp * kStages * Rows::kSubTileBytes;
  const int num_units =
      (end - begin + kAttentionTileTokens - 1) / kAttentionTileTokens * kTileUnits;
  // The segment's part of the block table, two blocks a lane.
  static_assert(kAttentionSegmentTokens / kKvSubTileTokens <= 2 * kWarp);
  SubTiles tile_at(problem, job, begin);
  const int first_index = tile_at.index();
  int blocks[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int entry = first_index + i * kWarp + lane;
    const bool there = int64_t{entry} * problem.kv.shape.block_tokens < end;
    blocks[i] = there ? problem.block_table[job.sequence * problem.max_blocks + entry] : 0;
  }
  int copied = 0;
  int copied_slot = 0;
  const auto copy = [&] {
    if (copied < num_units) {
      const int of_tile = copied % kTileUnits;
      const int sub = of_tile % Rows::kSubTiles;
      const int position =
          begin + copied / kTileUnits * kAttentionTileTokens + sub * kKvSubTileTokens;
      const bool there = position < end && position + kKvSubTileTokens > first_visible;
      SubTiles at = tile_at;
      at.Advance(sub * kKvSubTileTokens);
      const int entry = at.index() - first_index;
      const int low = __shfl_sync(0xFFFFFFFFu, blocks[0], entry % kWarp);
      const int high = __shfl_sync(0xFFFFFFFFu, blocks[1], entry % kWarp);
      const bool is_value = of_tile >= Rows::kSubTiles;
      const std::byte* const from = at.In<kHeadDim>(!there          ? 0
                                                    : entry < kWarp ? low
                                                                    : high) +
                                    (is_value ? at.ToValues() : 0);
      CopySubTile<kHeadDim, kWarp>(from, there, is_value, lane,
                                   ring + copied_slot * Rows::kSubTileBytes);
      ++copied;
      if (copied % kTileUnits == 0) tile_at.Advance(kAttentionTileTokens);
      copied_slot = copied_slot + 1 == kStages ? 0 : copied_slot + 1;
    }
    CommitCopies();
  };
  for (int i = 0; i < kStages; ++i) copy();

  uint4 queries[Rows::kSteps];
#pragma unroll
  for (int step = 0; step < Rows::kSteps; ++step) queries[step] = rows.Query(step);
  rows.Begin();
  int slot = 0;
  // The next sub-tile is there; whoever has read it lets another take its place.
  const auto take = [&] {
    WaitForCopies<kStages - 1>();
    __syncwarp();
    return ring + slot * Rows::kSubTileBytes;
  };
  const auto leave = [&] {
    __syncwarp();
    copy();
    slot = slot + 1 == kStages ? 0 : slot + 1;
  };
  for (int tile = begin; tile < end; tile += kAttentionTileTokens) {
#pragma unroll
    for (int sub = 0; sub < Rows::kSubTiles; ++sub) {
      rows.Scores(take(), sub, queries);
      leave();
    }
    rows.Softmax(tile, tile < first_visible || tile + kAttentionTileTokens > visible);
#pragma unroll
    for (int sub = 0; sub < Rows::kSubTiles; ++sub) {
      rows.AddValues(take(), sub, end - tile - sub * kKvSubTileTokens);
      leave();
    }
  }

  if (first_visible / kAttentionSegmentTokens == (visible - 1) / kAttentionSegmentTokens) {
    rows.Finish();
    return;
  }
  const int64_t part = (index * launch.splits + split) * kTensorRows;
  rows.ForEachRun([&](int i, int run, const float4& four) {
    const int row = Rows::RowOf(i);
    if (!rows.Has(row)) return;
    *reinterpret_cast<float4*>(launch.accumulators + (part + row) * kHeadDim + Rows::DimOf(run)) =
        four;
  });
#pragma unroll
  for (int i = 0; i < Rows::kRowsOfLane; ++i) {
    if (lane % 4 == 0) launch.partials[part + Rows::RowOf(i)] = {rows.max(i), rows.sum(i)};
  }
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

constexpr int kMergeThreads = 128;

// One block a row of a (sequence, KV head, chunk): merges its segments, left to right.
__global__ void TANDEM_THREADS(kMergeThreads, 1) TensorMergeKernel(TensorDecodeLaunch launch) {
  BeginLaunch();
  const AttentionProblem& problem = launch.problem;
  const int head_dim = problem.kv.shape.head_dim;
  const int64_t index = blockIdx.x / kTensorRows;
  const int row = blockIdx.x % kTensorRows;
  const RowJob job = launch.Job(index);
  const int visible = job.num_cached + 1;
  const auto first =
      static_cast<int>(FirstVisible(visible, problem.window)) / kAttentionSegmentTokens;
  const int segments = (visible - 1) / kAttentionSegmentTokens + 1 - first;
  if (segments == 1 || row >= job.num_rows) return;
  const int group = problem.num_heads / problem.kv.num_kv_heads;
  const int64_t head = int64_t{job.kv_head} * group + job.first_row + row;
  const int64_t to = (job.sequence * problem.num_heads + head) * head_dim;
  const int64_t part = index * launch.splits * kTensorRows + row;
  for (int d = threadIdx.x; d < head_dim; d += kMergeThreads) {
    RowPartial total = launch.partials[part];
    float acc = launch.accumulators[part * head_dim + d];
#pragma unroll 16
    for (int s = 1; s < segments; ++s) {
      const int64_t at = part + int64_t{s} * kTensorRows;
      const RowPartial right = launch.partials[at];
      const MergeScales scales = ScalesOf(total.max, right.max);
      total.max = scales.max;
      total.sum = total.sum * scales.left + right.sum * scales.right;
      acc = acc * scales.left + launch.accumulators[at * head_dim + d] * scales.right;
    }
    Store(DType::kBF16, problem.output, to + d, acc / total.sum + 0.0f);
  }
}

struct DecodePlan {
  int row_chunks;
  int64_t jobs;
  int64_t splits;
};
DecodePlan PlanDecode(const HostDecodeAttentionArgs& args) {
  const int row_chunks = CeilDiv(args.num_heads / args.kv.num_kv_heads, kTensorRows);
  const int64_t most =
      CeilDiv<int64_t>(args.max_blocks * args.kv.shape.block_tokens, kAttentionSegmentTokens);
  const int64_t seen =
      args.window == 0 ? most
                       : std::min(most, CeilDiv<int64_t>(args.window, kAttentionSegmentTokens) + 1);
  return {row_chunks, args.num_sequences * args.kv.num_kv_heads * row_chunks, seen};
}

// ---- prefill ----

constexpr int kPrefillWarps = 8;
constexpr int kPrefillThreads = kPrefillWarps * kWarp;
constexpr int kPrefillStages = 4;

struct TensorPrefillLaunch {
  AttentionProblem problem;
  const int32_t* query_start;  // [S + 1]
  const int32_t* num_cached;   // [S]
  int64_t num_sequences;       // S
  float4* totals;              // [block, thread's runs, thread]: what a block's segments had so far
};

constexpr size_t PrefillSharedBytes(int head_dim) {
  return static_cast<size_t>(kPrefillStages) * kAttentionTileTokens * head_dim * 2;
}
constexpr int kPrefillRows = kPrefillWarps * kTensorRows;

// One job's rows over all that they see.
template <int kHeadDim>
__device__ __forceinline__ void PrefillRows(const TensorPrefillLaunch& launch, const RowJob& job) {
  using Rows = TensorRows<kHeadDim>;
  constexpr int kUnitBytes = Rows::kSubTiles * Rows::kSubTileBytes;
  const AttentionProblem& problem = launch.problem;
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
  const int group = problem.num_heads / problem.kv.num_kv_heads;
  const int visible = job.num_cached + (job.first_row + job.num_rows - 1) / group + 1;
  const auto first_visible =
      static_cast<int>(FirstVisible(job.num_cached + job.first_row / group + 1, problem.window));
  const int begin = first_visible / kAttentionTileTokens * kAttentionTileTokens;
  const int num_units = (visible - begin + kAttentionTileTokens - 1) / kAttentionTileTokens * 2;
  // Two warps copy a sub-tile of each tile; its block is known a tile before.
  const int own_sub = warp / 2;
  int position = begin + own_sub * kKvSubTileTokens;
  SubTiles at(problem, job, position);
  const int32_t* const table = problem.block_table + job.sequence * problem.max_blocks;
  int block = position < visible ? table[at.index()] : 0;
  const std::byte* from = problem.kv.base;
  bool there = false;
  const auto copy = [&](int unit) {
    if (unit < num_units) {
      const bool is_value = unit % 2 == 1;
      if (!is_value) {
        there = position < visible && position + kKvSubTileTokens > first_visible;
        from = at.In<kHeadDim>(there ? block : 0);
        position += kAttentionTileTokens;
        at.Advance(kAttentionTileTokens);
        block = position < visible ? table[at.index()] : 0;
      }
      CopySubTile<kHeadDim, 2 * kWarp>(
          from + (is_value ? at.ToValues() : 0), there, is_value, thread % (2 * kWarp),
          ring + unit % kPrefillStages * kUnitBytes + own_sub * Rows::kSubTileBytes);
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
    return ring + unit % kPrefillStages * kUnitBytes;
  };

  float total_max[Rows::kRowsOfLane];
  float total_sum[Rows::kRowsOfLane];
  bool any_total = false;
  float4* const totals =
      launch.totals + (int64_t{blockIdx.x} * Rows::kRowsOfLane * Rows::kSteps * kPrefillThreads) +
      thread;
  rows.Begin();
  for (int unit = 0; unit < num_units; unit += 2) {
    const int tile = begin + unit / 2 * kAttentionTileTokens;
    const bool sees = tile < sees_end && tile + kAttentionTileTokens > sees_first;
    const SharedPtr<std::byte> k = next(unit);
    if (sees) {
#pragma unroll
      for (int sub = 0; sub < Rows::kSubTiles; ++sub) {
        rows.Scores(k + sub * Rows::kSubTileBytes, sub, queries);
      }
      rows.Softmax(tile, tile < all_first || tile + kAttentionTileTokens > all_end);
    }
    const SharedPtr<std::byte> v = next(unit + 1);
    if (sees) {
#pragma unroll
      for (int sub = 0; sub < Rows::kSubTiles; ++sub) {
        rows.AddValues(v + sub * Rows::kSubTileBytes, sub, visible - tile - sub * kKvSubTileTokens);
      }
    }
    // Behind a segment: what was there is merged with it, left to right.
    const int behind = tile + kAttentionTileTokens;
    const bool more = behind < visible;
    if (more && behind % kAttentionSegmentTokens != 0) continue;
    if (any_total) {
      MergeScales scales[Rows::kRowsOfLane];
#pragma unroll
      for (int i = 0; i < Rows::kRowsOfLane; ++i) {
        scales[i] = ScalesOf(total_max[i], rows.max(i));
        rows.Set(i, scales[i].max, total_sum[i] * scales[i].left + rows.sum(i) * scales[i].right);
      }
      rows.ForEachRun([&](int i, int run, float4& four) {
        const float4 left = totals[(i * Rows::kSteps + run) * kPrefillThreads];
        four.x = left.x * scales[i].left + four.x * scales[i].right;
        four.y = left.y * scales[i].left + four.y * scales[i].right;
        four.z = left.z * scales[i].left + four.z * scales[i].right;
        four.w = left.w * scales[i].left + four.w * scales[i].right;
      });
    }
    if (!more) break;
    rows.ForEachRun([&](int i, int run, const float4& four) {
      totals[(i * Rows::kSteps + run) * kPrefillThreads] = four;
    });
#pragma unroll
    for (int i = 0; i < Rows::kRowsOfLane; ++i) {
      total_max[i] = rows.max(i);
      total_sum[i] = rows.sum(i);
    }
    any_total = true;
    rows.Begin();
    load_queries();  // Their registers were wanted.
  }
  rows.Finish();
}

// As many blocks as the device holds; each takes every so manyth job, the last rows of a sequence
// first, as they see most.
template <int kHeadDim>
__global__ void TANDEM_THREADS(kPrefillThreads, 1) TensorPrefillKernel(TensorPrefillLaunch launch) {
  BeginLaunch();
  const AttentionProblem& problem = launch.problem;
  const int num_kv_heads = problem.kv.num_kv_heads;
  const int group = problem.num_heads / num_kv_heads;
  int64_t job = blockIdx.x;
  int64_t first_job = 0;
  for (int64_t s = 0; s < launch.num_sequences; ++s) {
    const int64_t start = launch.query_start[s];
    const int64_t num_rows = (launch.query_start[s + 1] - start) * group;
    const int64_t blocks = (num_rows + kPrefillRows - 1) / kPrefillRows;
    for (; job < first_job + blocks * num_kv_heads; job += gridDim.x) {
      const int64_t index = job - first_job;
      const auto first_row = static_cast<int>((blocks - 1 - index / num_kv_heads) * kPrefillRows);
      const int64_t rows_left = num_rows - first_row;
      PrefillRows<kHeadDim>(
          launch,
          {.sequence = s,
           .query_start = start,
           .num_cached = launch.num_cached[s],
           .kv_head = static_cast<int>(index % num_kv_heads),
           .first_row = first_row,
           .num_rows = static_cast<int>(rows_left < kPrefillRows ? rows_left : kPrefillRows)});
    }
    first_job += blocks * num_kv_heads;
  }
}

// function.template operator()<kHeadDim>() for a head that there are kernels for.
template <typename Function>
auto ByHeadDim(int head_dim, Function function) {
  if (head_dim == 64) return function.template operator()<64>();
  if (head_dim == 96) return function.template operator()<96>();
  return function.template operator()<128>();
}

int64_t NumParts(const DecodePlan& plan) { return plan.jobs * plan.splits * kTensorRows; }

}  // namespace

bool HasTensorAttention(const KvTileShape& shape, const ProcessorLimits& limits) {
  const int head_dim = shape.head_dim;
  return shape.type == KvType::kBF16 && (head_dim == 64 || head_dim == 96 || head_dim == 128) &&
         std::max(PrefillSharedBytes(head_dim), kDecodeSharedBytes) <= limits.max_shared_bytes;
}

size_t TensorDecodeScratchBytes(const HostDecodeAttentionArgs& args) {
  const DecodePlan plan = PlanDecode(args);
  if (plan.splits == 1) return 0;
  return static_cast<size_t>(NumParts(plan)) *
         (sizeof(RowPartial) + sizeof(float) * args.kv.shape.head_dim);
}

cudaError_t TensorDecodeAttention(const HostDecodeAttentionArgs& args, void* scratch,
                                  cudaStream_t stream) {
  const DecodePlan plan = PlanDecode(args);
  auto* const accumulators = static_cast<float*>(scratch);
  const TensorDecodeLaunch launch{.problem = ProblemOf(args),
                                  .num_tokens = args.num_tokens,
                                  .num_sequences = args.num_sequences,
                                  .row_chunks = plan.row_chunks,
                                  .splits = plan.splits,
                                  .partials = reinterpret_cast<RowPartial*>(
                                      accumulators + NumParts(plan) * args.kv.shape.head_dim),
                                  .accumulators = accumulators};
  const cudaError_t error = ByHeadDim(args.kv.shape.head_dim, [&]<int kHeadDim>() {
    return Launch(TensorDecodeKernel<kHeadDim>,
                  {.blocks = CeilDiv<int64_t>(plan.jobs * plan.splits, kDecodeWarps),
                   .threads = kDecodeWarps * kWarp,
                   .shared_bytes = kDecodeSharedBytes},
                  stream, launch);
  });
  if (error != cudaSuccess || plan.splits == 1) return error;
  return Launch(TensorMergeKernel, {.blocks = plan.jobs * kTensorRows, .threads = kMergeThreads},
                stream, launch);
}

size_t TensorPrefillScratchBytes(const KvTileShape& shape, const ProcessorLimits& limits) {
  return static_cast<size_t>(limits.num_processors) * kPrefillRows *
         static_cast<size_t>(shape.head_dim) * sizeof(float);
}

cudaError_t TensorPrefillAttention(const HostPrefillAttentionArgs& args, void* scratch,
                                   const ProcessorLimits& limits, cudaStream_t stream) {
  const TensorPrefillLaunch launch{.problem = ProblemOf(args),
                                   .query_start = args.query_start,
                                   .num_cached = args.num_cached,
                                   .num_sequences = args.num_sequences,
                                   .totals = static_cast<float4*>(scratch)};
  return ByHeadDim(args.kv.shape.head_dim, [&]<int kHeadDim>() {
    return Launch(TensorPrefillKernel<kHeadDim>,
                  {.blocks = args.num_sequences == 0 ? 0 : limits.num_processors,
                   .threads = kPrefillThreads,
                   .shared_bytes = PrefillSharedBytes(kHeadDim)},
                  stream, launch);
  });
}

}  // namespace tandem
