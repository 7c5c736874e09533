#include <cuda_runtime.h>

#include "kernels/api/e4m3.h"
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

// A lane has every 32nd number of a head.
constexpr int kMostOfLane = kMaxAttentionHeadDim / kWarp;

// A head's K, or V, of one token; a warp writes it. value(d) is number d; 0 behind the last.
template <KvType kType>
struct TileWriter {
  static constexpr DType kKept = kType == KvType::kF32 ? DType::kF32 : DType::kBF16;
  static constexpr int kP = kKept == DType::kF32 ? 1 : 2;

  template <typename Value>
  __device__ static void WriteKey(const Value& value, int head_dim, int token, std::byte* k) {
    for (int d = threadIdx.x % kWarp; d < head_dim; d += kWarp) {
      Store(kKept, k, (d / kP * kKvSubTileTokens + token) * kP + d % kP, value(d));
    }
  }
  template <typename Value>
  __device__ static void WriteValue(const Value& value, int head_dim, int token, std::byte* v) {
    const int padded = PaddedHeadDim(head_dim);
    for (int d = threadIdx.x % kWarp; d < padded; d += kWarp) {
      Store(kKept, v, (token / kP * padded + d) * kP + token % kP, value(d));
    }
  }
};

// The largest of so many neighbouring lanes.
template <int kOfLanes>
__device__ __forceinline__ uint32_t LargestOfLanes(uint32_t x) {
#pragma unroll
  for (int step = kOfLanes / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, x, step);
    x = other > x ? other : x;
  }
  return x;
}

template <>
struct TileWriter<KvType::kFp8> {
  using Kv = Fp8Kv;

  template <typename Value>
  __device__ static void WriteKey(const Value& value, int head_dim, int token, std::byte* k) {
    const int padded = PaddedHeadDim(head_dim);
    for (int d = threadIdx.x % kWarp; d < padded; d += kWarp) {
      k[Kv::KeyAt(token, d)] = std::byte{ToE4m3(value(d)).bits};
    }
  }
  template <typename Value>
  __device__ static void WriteValue(const Value& value, int head_dim, int token, std::byte* v) {
    const int padded = PaddedHeadDim(head_dim);
    for (int d = threadIdx.x % kWarp; d < padded; d += kWarp) {
      v[Kv::ValueAt(token, d, padded)] = std::byte{ToE4m3(value(d)).bits};
    }
  }
};

template <>
struct TileWriter<KvType::kInt8> {
  using Kv = Int8Kv;

  template <typename Value>
  __device__ static void WriteKey(const Value& value, int head_dim, int token, std::byte* k) {
    Write(value, head_dim, token, k, [&](int d) { return Kv::KeyAt(token, d); });
  }
  template <typename Value>
  __device__ static void WriteValue(const Value& value, int head_dim, int token, std::byte* v) {
    const int padded = PaddedHeadDim(head_dim);
    Write(value, head_dim, token, v, [&](int d) { return Kv::ValueAt(token, d, padded); });
  }

 private:
  template <typename Value, typename At>
  __device__ static void Write(const Value& value, int head_dim, int token, std::byte* sub_tile,
                               const At& at) {
    const int padded = PaddedHeadDim(head_dim);
    const int lane = threadIdx.x % kWarp;
    float numbers[kMostOfLane];
    uint32_t absmax = 0;
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) {
      numbers[i] = value(i * kWarp + lane);
      const uint32_t bits = MagnitudeBits(numbers[i]);
      absmax = bits > absmax ? bits : absmax;
    }
    const float scale = Int8Scale(__uint_as_float(LargestOfLanes<kWarp>(absmax)));
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) {
      const int d = i * kWarp + lane;
      if (d < padded) sub_tile[at(d)] = static_cast<std::byte>(ToInt8(numbers[i], scale));
    }
    if (lane == 0) {
      reinterpret_cast<float*>(sub_tile + Kv::NumberBytes(head_dim))[token] = scale;
    }
  }
};

template <>
struct TileWriter<KvType::kInt8G8> {
  using Kv = GroupedKv;

  template <typename Value>
  __device__ static void WriteKey(const Value& value, int head_dim, int token, std::byte* k) {
    Write(value, head_dim, [&](int d, uint8_t scale, int32_t number) {
      std::byte* const vector = k + Kv::KeyVectorAt(d);
      vector[Kv::KeyAt(token, d)] = static_cast<std::byte>(number);
      if (d % Kv::kGroup == 0) vector[token] = std::byte{scale};
    });
  }
  template <typename Value>
  __device__ static void WriteValue(const Value& value, int head_dim, int token, std::byte* v) {
    const int padded = PaddedHeadDim(head_dim);
    Write(value, head_dim, [&](int d, uint8_t scale, int32_t number) {
      std::byte* const vector = v + Kv::ValueVectorAt(token, d, padded);
      vector[Kv::ValueAt(token, d)] = static_cast<std::byte>(number);
      if (d % Kv::kGroup == 0) vector[Kv::ValueScaleAt(token, d)] = std::byte{scale};
    });
  }

 private:
  template <typename Value, typename To>
  __device__ static void Write(const Value& value, int head_dim, const To& to) {
    const int padded = PaddedHeadDim(head_dim);
    for (int first = 0; first < padded; first += kWarp) {  // The same for all lanes.
      const int d = first + static_cast<int>(threadIdx.x) % kWarp;
      const float x = value(d);
      const uint8_t scale =
          Int8GroupScale(__uint_as_float(LargestOfLanes<Kv::kGroup>(MagnitudeBits(x))));
      if (d < padded) to(d, scale, ToInt8OfGroup(x, scale));
    }
  }
};

template <typename Kv>
__global__ void TANDEM_THREADS(kThreads, 1) RotaryKvWriteKernel(HostRotaryKvWriteArgs args) {
  BeginLaunch();
  const HostKvLayerView& kv = args.kv;
  const int head_dim = kv.shape.head_dim;
  const unsigned blocks = BlocksOfToken(args.num_heads, kv.num_kv_heads);
  const int64_t t = blockIdx.x / blocks;
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
    for (int d = threadIdx.x % kWarp; d < head_dim; d += kWarp) {
      Store(Kv::kDType, args.query_out, to + d, head[d]);
    }
  } else if (item < args.num_heads + kv.num_kv_heads) {
    const int g = item - args.num_heads;
    const Head head(args.key + t * args.input_stride + int64_t{g} * head_dim, args.key_norm,
                    args.norm_epsilon, cos, sin, head_dim);
    TileWriter<Kv::kType>::WriteKey([&](int d) { return d < head_dim ? head[d] : 0.0f; }, head_dim,
                                    token, SubTileAt<Kv>(kv, block, offset, g));
  } else {
    const int g = item - args.num_heads - kv.num_kv_heads;
    const float* const value = args.value + t * args.input_stride + int64_t{g} * head_dim;
    TileWriter<Kv::kType>::WriteValue([&](int d) { return d < head_dim ? value[d] : 0.0f; },
                                      head_dim, token,
                                      SubTileAt<Kv>(kv, block, offset, kv.num_kv_heads + g));
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
  const int64_t blocks = args.num_tokens * BlocksOfToken(args.num_heads, args.kv.num_kv_heads);
  return ByKv(args.kv.shape.type, args.compute_dtype, [&]<typename Kv>() {
    return Launch(RotaryKvWriteKernel<Kv>, {.blocks = blocks, .threads = kThreads}, stream, args);
  });
}

}  // namespace tandem
