#include "kernels/cpu/cpu_attention.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/shared_segments.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

// Items of work that a thread has, at least, where there are as many: the last one is waited for.
constexpr int kItemsOfThread = 4;

// Rows that one call of a kernel handles: those of one sequence and some KV heads, of each from
// `first_row` on, a row being (query token, head of the group) with heads fastest.
struct Job {
  int64_t sequence;
  int first_kv_head;
  int num_kv_heads;
  int rows_each;  // of a KV head
  int64_t first_row;
  int64_t first_segment;  // of the first row, which sees furthest back
  int64_t num_segments;   // from there to the end of the last row's, which sees most
  int64_t first_partial;  // where its parts begin, in (segment, row) units

  int num_rows() const { return num_kv_heads * rows_each; }
};

// What decode and prefill have in common.
struct Problem {
  const HostKvLayerView* kv;
  const void* query;
  void* output;
  const int32_t* block_table;
  int64_t max_blocks;
  int num_heads;
  DType compute_dtype;
  float softmax_scale;
  float score_cap;
  int64_t window;
};

template <typename Args>
Problem ProblemOf(const Args& args) {
  return Problem{.kv = &args.kv,
                 .query = args.query,
                 .output = args.output,
                 .block_table = args.block_table,
                 .max_blocks = args.max_blocks,
                 .num_heads = args.num_heads,
                 .compute_dtype = args.compute_dtype,
                 .softmax_scale = args.softmax_scale,
                 .score_cap = args.score_cap,
                 .window = args.window};
}

struct Rows {
  std::array<const void*, kMaxAttentionTaskRows> queries;
  std::array<void*, kMaxAttentionTaskRows> outputs;
  std::array<int64_t, kMaxAttentionTaskRows> num_visible;  // of one KV head
};

// Bytes before a head of a token, in query and output.
size_t HeadOffset(const Problem& problem, int64_t token, int64_t head) {
  const size_t head_bytes =
      static_cast<size_t>(problem.kv->shape.head_dim) * SizeOf(problem.compute_dtype);
  return static_cast<size_t>(token * problem.num_heads + head) * head_bytes;
}

// query_start(s): first row of s in query and output; num_cached(s): positions before it.
template <typename QueryStart, typename NumCached>
Rows RowsOf(const Problem& problem, const Job& job, QueryStart query_start, NumCached num_cached) {
  const int group = problem.num_heads / problem.kv->num_kv_heads;
  Rows rows;
  for (int r = 0; r < job.num_rows(); ++r) {
    const int64_t row = job.first_row + r % job.rows_each;
    const int64_t token = row / group;
    const int64_t kv_head = job.first_kv_head + r / job.rows_each;
    const int64_t head = kv_head * group + row % group;
    const size_t offset = HeadOffset(problem, query_start(job.sequence) + token, head);
    rows.queries[r] = static_cast<const std::byte*>(problem.query) + offset;
    rows.outputs[r] = static_cast<std::byte*>(problem.output) + offset;
    rows.num_visible[r] = num_cached(job.sequence) + token + 1;
  }
  return rows;
}

AttentionTask TaskOf(const Problem& problem, const Job& job, const Rows& rows) {
  return AttentionTask{.kv = problem.kv,
                       .blocks = problem.block_table + job.sequence * problem.max_blocks,
                       .first_kv_head = job.first_kv_head,
                       .num_kv_heads = job.num_kv_heads,
                       .num_rows = job.rows_each,
                       .queries = rows.queries.data(),
                       .num_visible = rows.num_visible.data(),
                       .window = problem.window,
                       .softmax_scale = problem.softmax_scale,
                       .score_cap = problem.score_cap};
}

// Segments of a job, merged left to right; parts of segment first_segment + s at
// partials[s · rows] and accumulators[s · rows · stride].
void FinishRows(const AttentionKernels& kernels, const Problem& problem, const Job& job,
                const Rows& rows, const AttentionPartial* partials, const float* accumulators) {
  const int head_dim = problem.kv->shape.head_dim;
  const int64_t stride = AttentionAccumulatorStride(head_dim);
  alignas(64) std::array<float, kMaxAttentionHeadDim> total;
  for (int r = 0; r < job.num_rows(); ++r) {
    AttentionPartial partial = partials[r];
    std::copy_n(accumulators + r * stride, stride, total.begin());
    for (int64_t s = 1; s < job.num_segments; ++s) {
      const int64_t part = s * job.num_rows() + r;
      kernels.merge(head_dim, partials[part], accumulators + part * stride, &partial, total.data());
    }
    kernels.finish(head_dim, partial, total.data(), rows.outputs[r]);
  }
}

// All of a job on one thread.
void RunJob(const AttentionKernels& kernels, const Problem& problem, const Job& job,
            const Rows& rows) {
  const int head_dim = problem.kv->shape.head_dim;
  const int64_t stride = AttentionAccumulatorStride(head_dim);
  std::array<AttentionPartial, kMaxAttentionTaskRows> partials;
  std::array<AttentionPartial, kMaxAttentionTaskRows> next_partials;
  alignas(64) std::array<float, kMaxAttentionTaskRows * kMaxAttentionHeadDim> accumulators;
  alignas(64) std::array<float, kMaxAttentionTaskRows * kMaxAttentionHeadDim> next_accumulators;
  const AttentionTask task = TaskOf(problem, job, rows);
  int64_t begin = job.first_segment * kAttentionSegmentTokens;
  kernels.segment(task, begin, partials.data(), accumulators.data());
  for (int64_t s = 1; s < job.num_segments; ++s) {
    begin += kAttentionSegmentTokens;
    kernels.segment(task, begin, next_partials.data(), next_accumulators.data());
    for (int r = 0; r < job.num_rows(); ++r) {
      kernels.merge(head_dim, next_partials[r], next_accumulators.data() + r * stride, &partials[r],
                    accumulators.data() + r * stride);
    }
  }
  for (int r = 0; r < job.num_rows(); ++r) {
    kernels.finish(head_dim, partials[r], accumulators.data() + r * stride, rows.outputs[r]);
  }
}

// What jobs hand on from their segments to their end.
struct Parts {
  AttentionPartial* partials;
  float* accumulators;  // [parts, stride]
  int64_t stride;
};

// A segment of a job, or of several jobs of the same KV heads in sequences that share it.
struct Item {
  std::vector<const Job*> jobs;
  int64_t segment;  // from a job's first one
};

// Decode attention: a job's rows are the heads of its sequence's only token.
void RunShared(const AttentionKernels& kernels, const Problem& problem, const Item& item,
               const Parts& parts) {
  Job job = *item.jobs.front();
  const int group = job.rows_each;
  const int end_kv_head = job.first_kv_head + job.num_kv_heads;
  job.rows_each = static_cast<int>(item.jobs.size()) * group;
  const int heads_each = std::min(kMaxAttentionTaskRows / job.rows_each, job.num_kv_heads);
  std::array<AttentionPartial, kMaxAttentionTaskRows> partials;
  alignas(64) std::array<float, kMaxAttentionTaskRows * kMaxAttentionHeadDim> accumulators;
  const int64_t begin = item.segment * kAttentionSegmentTokens;
  for (; job.first_kv_head < end_kv_head; job.first_kv_head += heads_each) {
    job.num_kv_heads = std::min(heads_each, end_kv_head - job.first_kv_head);
    Rows rows;
    rows.num_visible.fill(begin + kAttentionSegmentTokens);  // All of it.
    std::array<int64_t, kMaxAttentionTaskRows> part_of;
    for (int r = 0; r < job.num_rows(); ++r) {
      const Job& own = *item.jobs[r % job.rows_each / group];
      const int kv_head = job.first_kv_head + r / job.rows_each;
      const int own_row = (kv_head - own.first_kv_head) * group + r % group;
      rows.queries[r] = static_cast<const std::byte*>(problem.query) +
                        HeadOffset(problem, own.sequence, kv_head * group + r % group);
      part_of[r] = own.first_partial + item.segment * own.num_rows() + own_row;
    }
    kernels.segment(TaskOf(problem, job, rows), begin, partials.data(), accumulators.data());
    for (int r = 0; r < job.num_rows(); ++r) {
      parts.partials[part_of[r]] = partials[r];
      std::copy_n(accumulators.data() + r * parts.stride, parts.stride,
                  parts.accumulators + part_of[r] * parts.stride);
    }
  }
}

// Every segment of every job once, shared ones for as many sequences as a task has rows for.
std::vector<Item> ItemsOf(const AttentionKernels& kernels, const std::vector<Job>& jobs,
                          const std::vector<SharedSegment>& shared) {
  std::vector<Item> items;
  std::vector<int64_t> num_shared(jobs.back().sequence + 1);  // The first ones of a sequence.
  const size_t jobs_each = jobs.size() / num_shared.size();
  for (const SharedSegment& segment : shared) {
    const RowTiles tiles = MakeRowTiles(static_cast<int64_t>(segment.sequences.size()),
                                        kernels.max_rows / jobs.front().rows_each);
    for (int64_t tile = 0; tile < tiles.count; ++tile) {
      for (size_t j = 0; j < jobs_each; ++j) {
        Item item{.segment = segment.segment};
        for (int64_t i = tiles.begin(tile); i < tiles.begin(tile + 1); ++i) {
          item.jobs.push_back(&jobs[segment.sequences[i] * jobs_each + j]);
        }
        items.push_back(std::move(item));
      }
    }
    for (const int64_t sequence : segment.sequences) num_shared[sequence] = segment.segment + 1;
  }
  for (const Job& job : jobs) {
    for (int64_t s = num_shared[job.sequence]; s < job.num_segments; ++s)
      items.push_back({{&job}, s});
  }
  return items;
}

template <typename QueryStart, typename NumCached>
absl::Status RunJobs(const AttentionKernels& kernels, const Problem& problem,
                     const std::vector<Job>& jobs, const std::vector<SharedSegment>& shared,
                     QueryStart query_start, NumCached num_cached, ThreadPool* pool,
                     Scratch* scratch) {
  const int64_t num_jobs = static_cast<int64_t>(jobs.size());
  int64_t num_parts = 0;
  int64_t num_segments = 0;
  int64_t longest = 0;
  for (const Job& job : jobs) {
    num_parts += job.num_segments * job.num_rows();
    num_segments += job.num_segments;
    longest = std::max(longest, job.num_segments);
  }
  // Threads would have too few jobs, or wait for the longest.
  const int64_t wanted = kItemsOfThread * pool->num_threads();
  const bool split = !shared.empty() || (pool->num_threads() > 1 && longest > 1 &&
                                         (num_jobs < wanted || longest * wanted > num_segments));
  if (!split) {
    pool->ParallelFor(num_jobs, [&](int64_t item, int) {
      const Job& job = jobs[item];
      RunJob(kernels, problem, job, RowsOf(problem, job, query_start, num_cached));
    });
    return absl::OkStatus();
  }
  const int64_t stride = AttentionAccumulatorStride(problem.kv->shape.head_dim);
  const size_t accumulators_bytes = static_cast<size_t>(num_parts * stride) * sizeof(float);
  TANDEM_ASSIGN_OR_RETURN(
      std::byte* const memory,
      scratch->Get(accumulators_bytes + static_cast<size_t>(num_parts) * sizeof(AttentionPartial)));
  const Parts parts{.partials = reinterpret_cast<AttentionPartial*>(memory + accumulators_bytes),
                    .accumulators = reinterpret_cast<float*>(memory),
                    .stride = stride};
  const std::vector<Item> items = ItemsOf(kernels, jobs, shared);
  pool->ParallelFor(static_cast<int64_t>(items.size()), [&](int64_t index, int) {
    const Item& item = items[index];
    if (item.jobs.size() > 1) return RunShared(kernels, problem, item, parts);
    const Job& job = *item.jobs.front();
    const Rows rows = RowsOf(problem, job, query_start, num_cached);
    const int64_t part = job.first_partial + item.segment * job.num_rows();
    kernels.segment(TaskOf(problem, job, rows),
                    (job.first_segment + item.segment) * kAttentionSegmentTokens,
                    parts.partials + part, parts.accumulators + part * stride);
  });
  pool->ParallelFor(num_jobs, [&](int64_t index, int) {
    const Job& job = jobs[index];
    FinishRows(kernels, problem, job, RowsOf(problem, job, query_start, num_cached),
               parts.partials + job.first_partial, parts.accumulators + job.first_partial * stride);
  });
  return absl::OkStatus();
}

// Cuts `num_tokens` query tokens of one sequence into jobs, `num_cached` positions before them.
// KV heads of few rows are read together, up to `most_heads` of them.
void AddJobs(const AttentionKernels& kernels, const Problem& problem, int most_heads,
             int64_t sequence, int64_t num_tokens, int64_t num_cached, std::vector<Job>* jobs) {
  const int num_kv_heads = problem.kv->num_kv_heads;
  const int group = problem.num_heads / num_kv_heads;
  if (num_tokens == 0) return;
  const RowTiles tiles = MakeRowTiles(num_tokens * group, kernels.max_rows);
  const int fitting = tiles.count == 1 ? kMaxAttentionTaskRows / tiles.rows(0) : 1;
  const int heads_each = std::min(fitting, most_heads);
  for (int head = 0; head < num_kv_heads; head += heads_each) {
    for (int64_t tile = 0; tile < tiles.count; ++tile) {
      Job job{.sequence = sequence,
              .first_kv_head = head,
              .num_kv_heads = std::min(heads_each, num_kv_heads - head),
              .rows_each = tiles.rows(tile),
              .first_row = tiles.begin(tile)};
      const int64_t least = num_cached + job.first_row / group + 1;
      const int64_t most = num_cached + (job.first_row + job.rows_each - 1) / group + 1;
      job.first_segment = FirstVisible(least, problem.window) / kAttentionSegmentTokens;
      job.num_segments = CeilDiv<int64_t>(most, kAttentionSegmentTokens) - job.first_segment;
      job.first_partial = 0;
      if (!jobs->empty()) {
        const Job& last = jobs->back();
        job.first_partial = last.first_partial + last.num_segments * last.num_rows();
      }
      jobs->push_back(job);
    }
  }
}

// query_start(s): first row of s in query and output; num_tokens(s): of its run; num_cached(s):
// positions before them.
template <typename QueryStart, typename NumTokens, typename NumCached>
absl::Status Attend(const AttentionKernels& kernels, const Problem& problem, int64_t num_sequences,
                    const std::vector<SharedSegment>& shared, QueryStart query_start,
                    NumTokens num_tokens, NumCached num_cached, ThreadPool* pool,
                    Scratch* scratch) {
  int64_t num_segments = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    num_segments += CeilDiv<int64_t>(num_cached(s) + num_tokens(s), kAttentionSegmentTokens) -
                    FirstVisible(num_cached(s) + 1, problem.window) / kAttentionSegmentTokens;
  }
  // All heads of a sequence, but for so many that threads would have nothing to do.
  const int64_t wanted = pool->num_threads() == 1 ? 1 : kItemsOfThread * pool->num_threads();
  const int64_t num_kv_heads = problem.kv->num_kv_heads;
  const int most_heads =
      static_cast<int>(std::clamp<int64_t>(num_kv_heads * num_segments / wanted, 1, num_kv_heads));
  std::vector<Job> jobs;
  for (int64_t s = 0; s < num_sequences; ++s) {
    AddJobs(kernels, problem, most_heads, s, num_tokens(s), num_cached(s), &jobs);
  }
  return RunJobs(kernels, problem, jobs, shared, query_start, num_cached, pool, scratch);
}

}  // namespace

absl::Status CpuDecodeAttention(const AttentionKernels& kernels,
                                const HostDecodeAttentionArgs& args, ThreadPool* pool,
                                Scratch* scratch) {
  const Problem problem = ProblemOf(args);
  std::vector<SharedSegment> shared;
  if (2 * args.num_heads / args.kv.num_kv_heads <= kernels.max_rows)
    shared = FindSharedSegments(args);
  return Attend(
      kernels, problem, args.num_sequences, shared, [](int64_t s) { return s; },
      [](int64_t) { return int64_t{1}; },
      [&](int64_t s) { return int64_t{args.num_tokens[s]} - 1; }, pool, scratch);
}

absl::Status CpuPrefillAttention(const AttentionKernels& kernels,
                                 const HostPrefillAttentionArgs& args, ThreadPool* pool,
                                 Scratch* scratch) {
  const Problem problem = ProblemOf(args);
  return Attend(
      kernels, problem, args.num_sequences, {},
      [&](int64_t s) { return int64_t{args.query_start[s]}; },
      [&](int64_t s) { return int64_t{args.query_start[s + 1]} - args.query_start[s]; },
      [&](int64_t s) { return int64_t{args.num_cached[s]}; }, pool, scratch);
}

}  // namespace tandem
