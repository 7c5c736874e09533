#include "kernels/cuda/cuda_attention.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/simt.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

// Decode attention is split as long as the device could hold so many blocks more.
constexpr int kBlocksPerProcessor = 8;

// ---- decode ----

struct DecodeLaunch {
  AttentionProblem problem;
  const int32_t* num_tokens;  // [S]
  int64_t num_sequences;      // S
  int row_chunks;             // of a KV head's group
  int64_t splits;             // Segments that have a block of their own; 1: all have the same.
  RowPartial* partials;       // [S, G, chunk, split, kRows]
  float* accumulators;        // [the same, D']
};

template <int kRows>
struct DecodeBlock {
  RowJob job;
  int64_t part;  // of split 0

  // `index` counts chunks, KV heads and sequences.
  __device__ DecodeBlock(const DecodeLaunch& launch, int64_t index) {
    const AttentionProblem& problem = launch.problem;
    const int group = problem.num_heads / problem.kv.num_kv_heads;
    const int chunk = static_cast<int>(index % launch.row_chunks);
    const int64_t heads = index / launch.row_chunks;
    const int64_t sequence = heads / problem.kv.num_kv_heads;
    const int first = chunk * kRows;
    job = {.sequence = sequence,
           .query_start = sequence,
           .num_cached = launch.num_tokens[sequence] - 1,
           .kv_head = static_cast<int>(heads % problem.kv.num_kv_heads),
           .first_row = first,
           .num_rows = group - first < kRows ? group - first : kRows};
    part = index * launch.splits * kRows;
  }
};

// One block a (split, sequence, KV head, chunk of its group).
template <typename Kv, int kRows, int kMaxHeadDim, bool kExact>
__global__ void TANDEM_THREADS(kAttentionThreads, AttentionBlocks<Kv>(kRows, kMaxHeadDim))
    DecodeKernel(DecodeLaunch launch) {
  BeginLaunch();
  const AttentionProblem& problem = launch.problem;
  const int64_t jobs = launch.num_sequences * problem.kv.num_kv_heads * launch.row_chunks;
  const auto split = static_cast<int>(blockIdx.x / jobs);
  const DecodeBlock<kRows> block(launch, blockIdx.x % jobs);
  AttentionRows<Kv, kRows, kMaxHeadDim, kExact> rows(problem, block.job);
  const int begin = rows.first_segment();
  const int end = rows.end_segment();
  if (launch.splits == 1) {
    rows.Run(begin, end, /*whole=*/true, nullptr, nullptr);
    return;
  }
  const int segment = begin + split;
  if (segment >= end) return;
  const int64_t part = block.part + int64_t{split} * kRows;
  rows.Run(segment, segment + 1, /*whole=*/end - begin == 1, launch.partials + part,
           launch.accumulators + part * PaddedHeadDim(problem.kv.shape.head_dim));
}

// One block a row of a (sequence, KV head, chunk): merges its splits, left to right.
template <typename Kv, int kRows>
__global__ void TANDEM_THREADS(kAttentionThreads, 1) MergeKernel(DecodeLaunch launch) {
  BeginLaunch();
  const AttentionProblem& problem = launch.problem;
  const int head_dim = problem.kv.shape.head_dim;
  const int padded = PaddedHeadDim(head_dim);
  const DecodeBlock<kRows> block(launch, blockIdx.x / kRows);
  const int row = blockIdx.x % kRows;
  const int visible = block.job.num_cached + 1;
  const auto first = static_cast<int>(FirstVisible(visible, problem.window)) /
                     kAttentionSegmentTokens;
  const int segments =
      (visible + kAttentionSegmentTokens - 1) / kAttentionSegmentTokens - first;
  if (segments == 1 || row >= block.job.num_rows) return;
  const int group = problem.num_heads / problem.kv.num_kv_heads;
  const int64_t head = int64_t{block.job.kv_head} * group + block.job.first_row + row;
  const int64_t to = (block.job.sequence * problem.num_heads + head) * head_dim;
  const RowPartial* const partials = launch.partials + block.part + row;
  for (int d = threadIdx.x; d < head_dim; d += kAttentionThreads) {
    const float* const accumulators = launch.accumulators + (block.part + row) * padded + d;
    RowPartial total = partials[0];
    float acc = accumulators[0];
#pragma unroll 4
    for (int s = 1; s < segments; ++s) {
      const RowPartial right = partials[s * kRows];
      const float right_acc = accumulators[int64_t{s} * kRows * padded];
      const float max = right.max > total.max ? right.max : total.max;
      if (max == -__builtin_inff()) continue;
      const float left_scale = Exp(total.max - max);
      const float right_scale = Exp(right.max - max);
      total.max = max;
      total.sum = total.sum * left_scale + right.sum * right_scale;
      acc = acc * left_scale + right_acc * right_scale;
    }
    Store(Kv::kDType, problem.output, to + d, acc / total.sum + 0.0f);
  }
}

// How the rows of a KV head are cut, and its segments.
struct DecodePlan {
  int rows;  // of a chunk: 2, 4, 8 or 16 (MaxAttentionRows)
  int row_chunks;
  int64_t splits;
};

DecodePlan PlanDecode(const HostDecodeAttentionArgs& args, int num_processors) {
  const int group = args.num_heads / args.kv.num_kv_heads;
  DecodePlan plan{.rows = 2};
  const int most_rows = MaxAttentionRows(args.kv.shape.head_dim);
  while (plan.rows < group && plan.rows < most_rows) plan.rows *= 2;
  plan.row_chunks = CeilDiv(group, plan.rows);
  const int64_t jobs = args.num_sequences * args.kv.num_kv_heads * plan.row_chunks;
  const int64_t most = CeilDiv<int64_t>(args.max_blocks * args.kv.shape.block_tokens,
                                        kAttentionSegmentTokens);
  const int64_t seen =
      args.window == 0 ? most
                       : std::min(most, CeilDiv<int64_t>(args.window, kAttentionSegmentTokens) + 1);
  plan.splits = jobs < int64_t{num_processors} * kBlocksPerProcessor ? seen : 1;
  return plan;
}

int64_t NumParts(const HostDecodeAttentionArgs& args, const DecodePlan& plan) {
  return args.num_sequences * args.kv.num_kv_heads * plan.row_chunks * plan.splits * plan.rows;
}

template <typename Kv, int kRows, int kMaxHeadDim, bool kExact>
cudaError_t LaunchDecode(const DecodeLaunch& launch, cudaStream_t stream) {
  const int64_t jobs =
      launch.num_sequences * launch.problem.kv.num_kv_heads * launch.row_chunks;
  using Rows = AttentionRows<Kv, kRows, kMaxHeadDim, kExact>;
  const cudaError_t error = Launch(DecodeKernel<Kv, kRows, kMaxHeadDim, kExact>,
                                   {.blocks = jobs * launch.splits,
                                    .threads = kAttentionThreads,
                                    .shared_bytes = Rows::SharedBytes(
                                        launch.problem.kv.shape.head_dim)},
                                   stream, launch);
  if (error != cudaSuccess || launch.splits == 1) return error;
  return Launch(MergeKernel<Kv, kRows>, {.blocks = jobs * kRows, .threads = kAttentionThreads},
                stream, launch);
}

// ---- prefill ----

struct PrefillLaunch {
  AttentionProblem problem;
  const int32_t* query_start;  // [S + 1]
  const int32_t* num_cached;   // [S]
  int64_t num_sequences;       // S
};

// As many blocks as the device holds; each takes every so manyth job, the last rows of a sequence
// first, as they see most.
template <typename Kv, int kRows, int kMaxHeadDim, bool kExact>
__global__ void TANDEM_THREADS(kAttentionThreads, AttentionBlocks<Kv>(kRows, kMaxHeadDim))
    PrefillKernel(PrefillLaunch launch) {
  BeginLaunch();
  const AttentionProblem& problem = launch.problem;
  const int num_kv_heads = problem.kv.num_kv_heads;
  const int group = problem.num_heads / num_kv_heads;
  int64_t job = blockIdx.x;
  int64_t first_job = 0;
  for (int64_t s = 0; s < launch.num_sequences; ++s) {
    const int64_t start = launch.query_start[s];
    const int64_t num_rows = (launch.query_start[s + 1] - start) * group;
    const int64_t tiles = (num_rows + kRows - 1) / kRows;
    for (; job < first_job + tiles * num_kv_heads; job += gridDim.x) {
      const int64_t index = job - first_job;
      const auto first_row = static_cast<int>((tiles - 1 - index / num_kv_heads) * kRows);
      const int64_t rows_left = num_rows - first_row;
      AttentionRows<Kv, kRows, kMaxHeadDim, kExact> rows(
          problem, {.sequence = s,
                    .query_start = start,
                    .num_cached = launch.num_cached[s],
                    .kv_head = static_cast<int>(index % num_kv_heads),
                    .first_row = first_row,
                    .num_rows = static_cast<int>(rows_left < kRows ? rows_left : kRows)});
      rows.Run(rows.first_segment(), rows.end_segment(), /*whole=*/true, nullptr, nullptr);
    }
    first_job += tiles * num_kv_heads;
  }
}

// function.template operator()<Kv, kMaxHeadDim, kExact>() for a shape. Only bf16, which models are
// served in, has kernels for exact sizes.
template <typename Function>
auto ByShape(const KvTileShape& shape, Function function) {
  const auto by_size = [&]<typename Kv, bool kExact>() {
    if (shape.head_dim <= 64) return function.template operator()<Kv, 64, kExact>();
    if (shape.head_dim <= 128) return function.template operator()<Kv, 128, kExact>();
    return function.template operator()<Kv, 256, kExact>();
  };
  if (shape.type == KvType::kF32) return by_size.template operator()<F32Kv, false>();
  const bool exact = shape.head_dim == 64 || shape.head_dim == 128 || shape.head_dim == 256;
  return exact ? by_size.template operator()<Bf16Kv, true>()
               : by_size.template operator()<Bf16Kv, false>();
}

}  // namespace

const char* CudaTileFormat(KvType type) {
  return type == KvType::kF32 ? "cpu.1.p1.f32" : "cpu.1.p2.bf16";
}

size_t CudaTileBytes(const KvTileShape& shape) {
  const int words = shape.type == KvType::kF32 ? SubTileWords<F32Kv>(shape.head_dim)
                                               : SubTileWords<Bf16Kv>(shape.head_dim);
  return static_cast<size_t>(shape.block_tokens / kKvSubTileTokens) * words * 4;
}

size_t CudaAttentionSharedBytes(const KvTileShape& shape) {
  return ByShape(shape, [&]<typename Kv, int kMaxHeadDim, bool kExact>() {
    return AttentionRows<Kv, MaxAttentionRows(kMaxHeadDim), kMaxHeadDim, kExact>::SharedBytes(shape.head_dim);
  });
}

size_t CudaDecodeScratchBytes(const HostDecodeAttentionArgs& args, int num_processors) {
  const DecodePlan plan = PlanDecode(args, num_processors);
  if (plan.splits == 1) return 0;
  return static_cast<size_t>(NumParts(args, plan)) *
         (sizeof(RowPartial) + sizeof(float) * PaddedHeadDim(args.kv.shape.head_dim));
}

cudaError_t CudaDecodeAttention(const HostDecodeAttentionArgs& args, int num_processors,
                                void* scratch, cudaStream_t stream) {
  const DecodePlan plan = PlanDecode(args, num_processors);
  auto* const partials = static_cast<RowPartial*>(scratch);
  const DecodeLaunch launch{.problem = ProblemOf(args),
                            .num_tokens = args.num_tokens,
                            .num_sequences = args.num_sequences,
                            .row_chunks = plan.row_chunks,
                            .splits = plan.splits,
                            .partials = partials,
                            .accumulators =
                                reinterpret_cast<float*>(partials + NumParts(args, plan))};
  return ByShape(args.kv.shape, [&]<typename Kv, int kMaxHeadDim, bool kExact>() {
    switch (plan.rows) {
      case 2:
        return LaunchDecode<Kv, 2, kMaxHeadDim, kExact>(launch, stream);
      case 4:
        return LaunchDecode<Kv, 4, kMaxHeadDim, kExact>(launch, stream);
      case 8:
        return LaunchDecode<Kv, 8, kMaxHeadDim, kExact>(launch, stream);
      default:
        return LaunchDecode<Kv, MaxAttentionRows(kMaxHeadDim), kMaxHeadDim, kExact>(launch, stream);
    }
  });
}

cudaError_t CudaPrefillAttention(const HostPrefillAttentionArgs& args, int num_processors,
                                 cudaStream_t stream) {
  const PrefillLaunch launch{.problem = ProblemOf(args),
                             .query_start = args.query_start,
                             .num_cached = args.num_cached,
                             .num_sequences = args.num_sequences};
  return ByShape(args.kv.shape, [&]<typename Kv, int kMaxHeadDim, bool kExact>() {
    using Rows = AttentionRows<Kv, MaxAttentionRows(kMaxHeadDim), kMaxHeadDim, kExact>;
    return Launch(PrefillKernel<Kv, MaxAttentionRows(kMaxHeadDim), kMaxHeadDim, kExact>,
                  {.blocks = args.num_sequences == 0 ? 0 : int64_t{num_processors} * 4,
                   .threads = kAttentionThreads,
                   .shared_bytes = Rows::SharedBytes(args.kv.shape.head_dim)},
                  stream, launch);
  });
}

}  // namespace tandem
