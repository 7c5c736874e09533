#include <cuda_runtime.h>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/vector_math.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

__global__ void TANDEM_THREADS(kThreads, 1) RotaryTableKernel(HostRotaryTableArgs args) {
  BeginLaunch();
  const int64_t half = args.head_dim / 2;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.num_tokens * half) return;
  const auto position = static_cast<float>(args.positions[i / half]);
  const SinCosResult result = SinCos(position * args.inv_freq[i % half]);
  args.cos[i] = result.cos * args.scale;
  args.sin[i] = result.sin * args.scale;
}

// A head of one token, normed and rotated as it is read. A warp works on one head.
class Head {
 public:
  // `weight` null: not normed. `cos` null: not rotated; else [D / 2] of the token.
  __device__ Head(const float* values, const float* weight, float epsilon, const float* cos,
                  const float* sin, int head_dim)
      : values_(values), weight_(weight), cos_(cos), sin_(sin), half_(head_dim / 2) {
    if (weight == nullptr) return;
    const int lane = threadIdx.x % kWarp;
    float sum = 0.0f;
    if (lane < kLanes) {
      for (int d = lane; d < head_dim; d += kLanes) sum = sum + values[d] * values[d];
    }
    sum = __shfl_sync(0xFFFFFFFFu, SumOfLanes(sum), 0);
    scale_ = 1.0f / __fsqrt_rn(sum / static_cast<float>(head_dim) + epsilon);
  }

  __device__ float operator[](int d) const {
    if (cos_ == nullptr) return Normed(d);
    const int i = d < half_ ? d : d - half_;
    const float other = Normed(d < half_ ? d + half_ : d - half_);
    return d < half_ ? Normed(d) * cos_[i] - other * sin_[i]
                     : Normed(d) * cos_[i] + other * sin_[i];
  }

 private:
  __device__ float Normed(int d) const {
    return weight_ == nullptr ? values_[d] : (values_[d] * scale_) * weight_[d];
  }

  const float* const values_;
  const float* const weight_;
  const float* const cos_;
  const float* const sin_;
  const int half_;
  float scale_ = 1.0f;
};

// One block so many heads of a token's Q, K and V; one warp a head.
constexpr int kHeadsOfBlock = kThreads / kWarp;

__host__ __device__ constexpr unsigned BlocksOfToken(int num_heads, int num_kv_heads) {
  return static_cast<unsigned>((num_heads + 2 * num_kv_heads + kHeadsOfBlock - 1) / kHeadsOfBlock);
}

template <typename Kv>
__global__ void TANDEM_THREADS(kThreads, 1) RotaryKvWriteKernel(HostRotaryKvWriteArgs args) {
  BeginLaunch();
  constexpr int kP = Kv::kPerWord;
  const HostKvLayerView& kv = args.kv;
  const int head_dim = kv.shape.head_dim;
  const int padded = PaddedHeadDim(head_dim);
  const unsigned blocks = BlocksOfToken(args.num_heads, kv.num_kv_heads);
  const int64_t t = blockIdx.x / blocks;
  const int lane = threadIdx.x % kWarp;
  const float* const cos = args.cos == nullptr ? nullptr : args.cos + t * (head_dim / 2);
  const float* const sin = args.sin == nullptr ? nullptr : args.sin + t * (head_dim / 2);
  const int64_t block = args.slots[t] / kv.shape.block_tokens;
  const auto offset = static_cast<int>(args.slots[t] % kv.shape.block_tokens);
  const int token = offset % kKvSubTileTokens;
  const int num_items = args.num_heads + 2 * kv.num_kv_heads;
  const int item = static_cast<int>(blockIdx.x % blocks) * kHeadsOfBlock + threadIdx.x / kWarp;
  if (item >= num_items) return;
  if (item < args.num_heads) {
    const Head head(args.query + t * args.input_stride + int64_t{item} * head_dim, args.query_norm,
                    args.norm_epsilon, cos, sin, head_dim);
    const int64_t to = (t * args.num_heads + item) * head_dim;
    for (int d = lane; d < head_dim; d += kWarp) {
      Store(Kv::kDType, args.query_out, to + d, head[d]);
    }
  } else if (item < args.num_heads + kv.num_kv_heads) {
    const int g = item - args.num_heads;
    const Head head(args.key + t * args.input_stride + int64_t{g} * head_dim, args.key_norm,
                    args.norm_epsilon, cos, sin, head_dim);
    std::byte* const k = SubTileAt<Kv>(kv, block, offset, g);
    for (int d = lane; d < head_dim; d += kWarp) {
      Store(Kv::kDType, k, (d / kP * kKvSubTileTokens + token) * kP + d % kP, head[d]);
    }
  } else {
    const int g = item - args.num_heads - kv.num_kv_heads;
    const float* const value = args.value + t * args.input_stride + int64_t{g} * head_dim;
    std::byte* const v = SubTileAt<Kv>(kv, block, offset, kv.num_kv_heads + g);
    for (int d = lane; d < padded; d += kWarp) {
      Store(Kv::kDType, v, (token / kP * padded + d) * kP + token % kP,
            d < head_dim ? value[d] : 0.0f);
    }
  }
}

}  // namespace

cudaError_t CudaRotaryTable(const HostRotaryTableArgs& args, cudaStream_t stream) {
  const int64_t elements = args.num_tokens * (args.head_dim / 2);
  return Launch(RotaryTableKernel,
                {.blocks = (elements + kThreads - 1) / kThreads, .threads = kThreads}, stream,
                args);
}

cudaError_t CudaRotaryKvWrite(const HostRotaryKvWriteArgs& args, cudaStream_t stream) {
  const auto kernel =
      args.kv.shape.type == KvType::kF32 ? RotaryKvWriteKernel<F32Kv> : RotaryKvWriteKernel<Bf16Kv>;
  const int64_t blocks = BlocksOfToken(args.num_heads, args.kv.num_kv_heads);
  return Launch(kernel, {.blocks = args.num_tokens * blocks, .threads = kThreads}, stream, args);
}

}  // namespace tandem
