// What there is to do in a launch of attention, whatever units of the GPU do it: rows of one
// sequence and one KV head are a job, and decode cuts a job into segments, whose parts are merged.

#ifndef TANDEM_KERNELS_CUDA_ATTENTION_JOBS_H_
#define TANDEM_KERNELS_CUDA_ATTENTION_JOBS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/simt.h"
#include "runtime/base/math.h"

namespace tandem {

// What all rows of a launch have in common.
struct AttentionProblem {
  HostKvLayerView kv;
  const void* query;           // [T, H, D]
  void* output;                // [T, H, D]
  const int32_t* block_table;  // [S, M]
  int64_t max_blocks;          // M
  int num_heads;               // H
  float softmax_scale;
  float score_cap;
  int64_t window;
};

template <typename Args>
AttentionProblem ProblemOf(const Args& args) {
  return {.kv = args.kv,
          .query = args.query,
          .output = args.output,
          .block_table = args.block_table,
          .max_blocks = args.max_blocks,
          .num_heads = args.num_heads,
          .softmax_scale = args.softmax_scale,
          .score_cap = args.score_cap,
          .window = args.window};
}

// Query rows (token, head of the group), heads fastest, of one sequence and one KV head.
struct RowJob {
  int64_t sequence;
  int64_t query_start;  // the sequence's first token in query and output
  int num_cached;       // positions before that token
  int kv_head;
  int first_row;
  int num_rows;  // 1 to kRows
};

// A row's softmax over a part of its positions: the accumulator is Σ exp(score − max) · V.
struct RowPartial {
  float max;
  float sum;
};

// The segments that a row sees.
struct SeenSegments {
  int first;
  int count;
};
__device__ __forceinline__ SeenSegments SegmentsSeen(const AttentionProblem& problem, int visible) {
  const auto first =
      static_cast<int>(FirstVisible(visible, problem.window)) / kAttentionSegmentTokens;
  return {first, (visible - 1) / kAttentionSegmentTokens + 1 - first};
}

// ---- decode ----

struct DecodeLaunch {
  AttentionProblem problem;
  const int32_t* num_tokens;  // [S]
  int64_t num_sequences;      // S
  int row_chunks;             // of a KV head's group
  int chunk_rows;             // at most
  int64_t splits;             // segments of a job that are apart; 1: all are together
  RowPartial* partials;       // [S, G, chunk, split, chunk_rows]
  float* accumulators;        // [the same, D']

  // A grid has more blocks than these: 32 bits, which are divided sooner.
  __device__ unsigned num_jobs() const {
    return static_cast<unsigned>(num_sequences) * problem.kv.num_kv_heads * row_chunks;
  }
  // Job `index` counts chunks, KV heads and sequences. It waits for no launch: counts and tables
  // come from the host.
  __device__ RowJob Job(unsigned index) const {
    const int group = problem.num_heads / problem.kv.num_kv_heads;
    const unsigned heads = index / row_chunks;
    const unsigned sequence = heads / problem.kv.num_kv_heads;
    const int first = static_cast<int>(index % row_chunks) * chunk_rows;
    return {.sequence = sequence,
            .query_start = sequence,
            .num_cached = num_tokens[sequence] - 1,
            .kv_head = static_cast<int>(heads % problem.kv.num_kv_heads),
            .first_row = first,
            .num_rows = Least(group - first, chunk_rows)};
  }
  // Where the rows of a job's split are among partials and accumulators.
  __device__ int64_t PartOf(int64_t index, int64_t split) const {
    return (index * splits + split) * chunk_rows;
  }
};

// Segments that a sequence of a launch may see.
inline int64_t MostSegments(const HostDecodeAttentionArgs& args) {
  const int64_t all =
      CeilDiv<int64_t>(args.max_blocks * args.kv.shape.block_tokens, kAttentionSegmentTokens);
  if (args.window == 0) return all;
  return std::min(all, CeilDiv<int64_t>(args.window, kAttentionSegmentTokens) + 1);
}

inline constexpr int kMergeThreads = 128;

// One block a row of a job: merges its splits, left to right, a number of the output as
// Merge::Add(right, right_accumulator, &left, &left_accumulator) does.
template <DType kDType, typename Merge>
__global__ void TANDEM_THREADS(kMergeThreads, 1) MergeKernel(DecodeLaunch launch) {
  BeginLaunch();
  const AttentionProblem& problem = launch.problem;
  const int head_dim = problem.kv.shape.head_dim;
  const int padded = PaddedHeadDim(head_dim);
  const int chunk_rows = launch.chunk_rows;
  const unsigned index = blockIdx.x / chunk_rows;
  const auto row = static_cast<int>(blockIdx.x % chunk_rows);
  const RowJob job = launch.Job(index);
  const int segments = SegmentsSeen(problem, job.num_cached + 1).count;
  if (segments == 1 || row >= job.num_rows) return;
  const int group = problem.num_heads / problem.kv.num_kv_heads;
  const int64_t head = int64_t{job.kv_head} * group + job.first_row + row;
  const int64_t to = (job.sequence * problem.num_heads + head) * head_dim;
  const int64_t part = launch.PartOf(index, 0) + row;
  const RowPartial* const partials = launch.partials + part;
  for (int d = threadIdx.x; d < head_dim; d += kMergeThreads) {
    const float* const accumulators = launch.accumulators + part * padded + d;
    RowPartial total = partials[0];
    float acc = accumulators[0];
#pragma unroll 16
    for (int s = 1; s < segments; ++s) {
      const int64_t at = int64_t{s} * chunk_rows;
      Merge::Add(partials[at], accumulators[at * padded], &total, &acc);
    }
    Store(kDType, problem.output, to + d, acc / total.sum + 0.0f);
  }
}

template <DType kDType, typename Merge>
cudaError_t MergeSplits(const DecodeLaunch& launch, int64_t num_jobs, cudaStream_t stream) {
  if (launch.splits == 1) return cudaSuccess;
  return Launch(MergeKernel<kDType, Merge>,
                {.blocks = num_jobs * launch.chunk_rows, .threads = kMergeThreads}, stream, launch);
}

// ---- prefill ----

struct PrefillLaunch {
  AttentionProblem problem;
  const int32_t* query_start;  // [S + 1]
  const int32_t* num_cached;   // [S]
  int64_t num_sequences;       // S
};
inline PrefillLaunch PrefillLaunchOf(const HostPrefillAttentionArgs& args) {
  return {.problem = ProblemOf(args),
          .query_start = args.query_start,
          .num_cached = args.num_cached,
          .num_sequences = args.num_sequences};
}

// function(job) for jobs of kRows rows. As many blocks as the device holds; each takes every so
// manyth job, the last rows of a sequence first, as they see most.
template <int kRows, typename Function>
__device__ __forceinline__ void ForEachPrefillJob(const PrefillLaunch& launch,
                                                  const Function& function) {
  const int num_kv_heads = launch.problem.kv.num_kv_heads;
  const int group = launch.problem.num_heads / num_kv_heads;
  int64_t job = blockIdx.x;
  int64_t first_job = 0;
  for (int64_t s = 0; s < launch.num_sequences; ++s) {
    const int64_t start = launch.query_start[s];
    const int64_t num_rows = (launch.query_start[s + 1] - start) * group;
    const int64_t chunks = (num_rows + kRows - 1) / kRows;
    for (; job < first_job + chunks * num_kv_heads; job += gridDim.x) {
      const int64_t index = job - first_job;
      const auto first_row = static_cast<int>((chunks - 1 - index / num_kv_heads) * kRows);
      const int64_t rows_left = num_rows - first_row;
      function(RowJob{.sequence = s,
                      .query_start = start,
                      .num_cached = launch.num_cached[s],
                      .kv_head = static_cast<int>(index % num_kv_heads),
                      .first_row = first_row,
                      .num_rows = static_cast<int>(rows_left < kRows ? rows_left : kRows)});
    }
    first_job += chunks * num_kv_heads;
  }
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_ATTENTION_JOBS_H_
