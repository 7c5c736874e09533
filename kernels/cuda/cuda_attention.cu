#include "kernels/cuda/cuda_attention.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/simt.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

// Decode attention is split as long as the device could hold so many blocks more.
constexpr int kBlocksPerProcessor = 8;

// ---- decode ----

// One block a (split, sequence, KV head, chunk of its group).
template <typename Kv, int kRows, int kMaxHeadDim, bool kExact>
__global__ void TANDEM_THREADS(kAttentionThreads, AttentionBlocks<Kv>(kRows, kMaxHeadDim))
    DecodeKernel(DecodeLaunch launch) {
  BeginLaunch();
  const AttentionProblem& problem = launch.problem;
  const unsigned index = blockIdx.x % launch.num_jobs();
  const auto split = static_cast<int>(blockIdx.x / launch.num_jobs());
  AttentionRows<Kv, kRows, kMaxHeadDim, kExact> rows(problem, launch.Job(index));
  const int begin = rows.first_segment();
  const int end = rows.end_segment();
  if (launch.splits == 1) {
    rows.Run(begin, end, /*whole=*/true, nullptr, nullptr);
    return;
  }
  const int segment = begin + split;
  if (segment >= end) return;
  const int64_t part = launch.PartOf(index, split);
  rows.Run(segment, segment + 1, /*whole=*/end - begin == 1, launch.partials + part,
           launch.accumulators + part * PaddedHeadDim(problem.kv.shape.head_dim));
}

struct ExpMerge {
  __device__ static void Add(const RowPartial& right, float right_acc, RowPartial* total,
                             float* acc) {
    const float max = right.max > total->max ? right.max : total->max;
    if (max == -__builtin_inff()) return;
    const float left_scale = Exp(total->max - max);
    const float right_scale = Exp(right.max - max);
    total->max = max;
    total->sum = total->sum * left_scale + right.sum * right_scale;
    *acc = *acc * left_scale + right_acc * right_scale;
  }
};

// How the rows of a KV head are cut, and its segments.
struct DecodePlan {
  int rows;  // of a chunk: 2, 4, 8 or 16 (MaxAttentionRows); of KV not in what is computed in fewer
  int row_chunks;
  int64_t splits;
};

DecodePlan PlanDecode(const HostDecodeAttentionArgs& args, const ProcessorLimits& limits) {
  const int group = args.num_heads / args.kv.num_kv_heads;
  const bool plain = args.kv.shape.type == KvTypeOf(args.compute_dtype);
  DecodePlan plan{.rows = plain ? 2 : 4};
  const int most_rows = MaxAttentionRows(args.kv.shape.head_dim);
  while (plan.rows < group && plan.rows < most_rows) plan.rows *= plain ? 2 : 4;
  plan.rows = std::min(plan.rows, most_rows);
  plan.row_chunks = CeilDiv(group, plan.rows);
  const int64_t jobs = args.num_sequences * args.kv.num_kv_heads * plan.row_chunks;
  plan.splits =
      jobs < int64_t{limits.num_processors} * kBlocksPerProcessor ? MostSegments(args) : 1;
  return plan;
}

int64_t NumParts(const HostDecodeAttentionArgs& args, const DecodePlan& plan) {
  return args.num_sequences * args.kv.num_kv_heads * plan.row_chunks * plan.splits * plan.rows;
}

template <typename Kv, int kRows, int kMaxHeadDim, bool kExact>
cudaError_t LaunchDecode(const DecodeLaunch& launch, const ProcessorLimits& limits,
                         cudaStream_t stream) {
  const int64_t jobs = launch.num_sequences * launch.problem.kv.num_kv_heads * launch.row_chunks;
  using Rows = AttentionRows<Kv, kRows, kMaxHeadDim, kExact>;
  const cudaError_t error = Launch(DecodeKernel<Kv, kRows, kMaxHeadDim, kExact>,
                                   {.blocks = jobs * launch.splits,
                                    .threads = kAttentionThreads,
                                    .shared_bytes = Rows::SharedBytes(
                                        launch.problem.kv.shape.head_dim, limits.max_shared_bytes)},
                                   stream, launch);
  if (error != cudaSuccess) return error;
  return MergeSplits<Kv::kDType, ExpMerge>(launch, jobs, stream);
}

// ---- prefill ----

template <typename Kv, int kRows, int kMaxHeadDim, bool kExact>
__global__ void TANDEM_THREADS(kAttentionThreads, AttentionBlocks<Kv>(kRows, kMaxHeadDim))
    PrefillKernel(PrefillLaunch launch) {
  BeginLaunch();
  ForEachPrefillJob<kRows>(launch, [&](const RowJob& job) {
    AttentionRows<Kv, kRows, kMaxHeadDim, kExact> rows(launch.problem, job);
    rows.Run(rows.first_segment(), rows.end_segment(), /*whole=*/true, nullptr, nullptr);
  });
}

// function.template operator()<Kv, kMaxHeadDim, kExact>() for a shape. Only bf16, which models are
// served in, has kernels for exact sizes.
template <typename Function>
auto ByShape(const KvTileShape& shape, DType compute_dtype, Function function) {
  const int head_dim = shape.head_dim;
  return ByKv(shape.type, compute_dtype, [&]<typename Kv>() {
    const auto by_size = [&]<bool kExact>() {
      if (head_dim <= 64) return function.template operator()<Kv, 64, kExact>();
      if (head_dim <= 128) return function.template operator()<Kv, 128, kExact>();
      return function.template operator()<Kv, 256, kExact>();
    };
    if constexpr (std::is_same_v<Kv, Bf16Kv>) {
      const bool exact = head_dim == 64 || head_dim == 128 || head_dim == 256;
      if (exact) return by_size.template operator()<true>();
    }
    return by_size.template operator()<false>();
  });
}

}  // namespace

const char* CudaTileFormat(KvType type) {
  const char* format = nullptr;
  ByKv(type, DType::kBF16, [&]<typename Kv>() { format = Kv::kFormat; });
  return format;
}

size_t CudaTileBytes(const KvTileShape& shape) {
  return ByKv(shape.type, DType::kBF16, [&]<typename Kv>() {
    return static_cast<size_t>(shape.block_tokens / kKvSubTileTokens) *
           static_cast<size_t>(Kv::SubTileBytes(shape.head_dim));
  });
}

size_t CudaAttentionSharedBytes(const KvTileShape& shape, DType compute_dtype) {
  return ByShape(shape, compute_dtype, [&]<typename Kv, int kMaxHeadDim, bool kExact>() {
    return AttentionRows<Kv, MaxAttentionRows(kMaxHeadDim), kMaxHeadDim, kExact>::BytesWith(
        /*units=*/1, shape.head_dim);
  });
}

size_t CudaDecodeScratchBytes(const HostDecodeAttentionArgs& args, const ProcessorLimits& limits) {
  const DecodePlan plan = PlanDecode(args, limits);
  if (plan.splits == 1) return 0;
  return static_cast<size_t>(NumParts(args, plan)) *
         (sizeof(RowPartial) + sizeof(float) * PaddedHeadDim(args.kv.shape.head_dim));
}

cudaError_t CudaDecodeAttention(const HostDecodeAttentionArgs& args, void* scratch,
                                const ProcessorLimits& limits, cudaStream_t stream) {
  const DecodePlan plan = PlanDecode(args, limits);
  auto* const partials = static_cast<RowPartial*>(scratch);
  const DecodeLaunch launch{
      .problem = ProblemOf(args),
      .num_tokens = args.num_tokens,
      .num_sequences = args.num_sequences,
      .row_chunks = plan.row_chunks,
      .chunk_rows = plan.rows,
      .splits = plan.splits,
      .partials = partials,
      .accumulators = reinterpret_cast<float*>(partials + NumParts(args, plan))};
  return ByShape(args.kv.shape, args.compute_dtype,
                 [&]<typename Kv, int kMaxHeadDim, bool kExact>() {
                   constexpr int kMostRows = MaxAttentionRows(kMaxHeadDim);
                   if constexpr (Kv::kType == KvTypeOf(Kv::kDType)) {
                     if (plan.rows == 2)
                       return LaunchDecode<Kv, 2, kMaxHeadDim, kExact>(launch, limits, stream);
                     if (plan.rows == 8)
                       return LaunchDecode<Kv, 8, kMaxHeadDim, kExact>(launch, limits, stream);
                   }
                   if (plan.rows == 4)
                     return LaunchDecode<Kv, 4, kMaxHeadDim, kExact>(launch, limits, stream);
                   return LaunchDecode<Kv, kMostRows, kMaxHeadDim, kExact>(launch, limits, stream);
                 });
}

cudaError_t CudaPrefillAttention(const HostPrefillAttentionArgs& args,
                                 const ProcessorLimits& limits, cudaStream_t stream) {
  const PrefillLaunch launch = PrefillLaunchOf(args);
  return ByShape(
      args.kv.shape, args.compute_dtype, [&]<typename Kv, int kMaxHeadDim, bool kExact>() {
        using Rows = AttentionRows<Kv, MaxAttentionRows(kMaxHeadDim), kMaxHeadDim, kExact>;
        return Launch(
            PrefillKernel<Kv, MaxAttentionRows(kMaxHeadDim), kMaxHeadDim, kExact>,
            {.blocks = args.num_sequences == 0 ? 0 : int64_t{limits.num_processors} * 4,
             .threads = kAttentionThreads,
             .shared_bytes = Rows::SharedBytes(args.kv.shape.head_dim, limits.max_shared_bytes)},
            stream, launch);
      });
}

}  // namespace tandem
