#include "kernels/cuda/cuda_rows.h"

#include <cuda_runtime.h>

#include "kernels/cuda/numbers.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/int8.h"
#include "kernels/support/vector_math.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;

constexpr int64_t BlocksOf(int64_t elements) { return (elements + kThreads - 1) / kThreads; }

__device__ __forceinline__ int64_t ElementOfThread() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

// ---- norms: one block a row ----

constexpr int kNormThreads = 512;
constexpr int kNormRow = 8192;                  // numbers that are in shared memory at once
constexpr int kHeld = kNormRow / kNormThreads;  // weights that a thread has
constexpr int kNormWarps = kNormThreads / 32;

LaunchShape NormShape(int64_t num_rows) {
  return {.blocks = num_rows,
          .threads = kNormThreads,
          .shared_bytes = (kNormRow + 1 + kNormWarps) * sizeof(float)};
}

// A row, which stays in shared memory if it is no longer than that.
class NormRow {
 public:
  __device__ NormRow(const float* row, int64_t features)
      : row_(row), features_(features), shared_(SharedCast<float>(SharedMemory())) {
    Load(0);
  }
  __device__ float operator[](int64_t e) const {
    return features_ > kNormRow ? row_[e] : shared_[e];
  }

  // Σ term(x) over the row, in the order of kernels/api/rows.h: sixteen threads add up, and all
  // have the sum.
  template <typename Term>
  __device__ float Sum(const Term& term) const {
    float lane = 0.0f;
    for (int64_t first = 0; first < features_; first += kNormRow) {
      if (features_ > kNormRow) Load(first);
      if (threadIdx.x < kLanes) {
#pragma unroll 16
        for (int i = threadIdx.x; i < CountFrom(first); i += kLanes) lane = lane + term(shared_[i]);
      }
      if (features_ > kNormRow) __syncthreads();
    }
    if (threadIdx.x < 32) {
      lane = SumOfLanes(lane);
      if (threadIdx.x == 0) shared_[kNormRow] = lane;
    }
    __syncthreads();
    const float sum = shared_[kNormRow];
    __syncthreads();
    return sum;
  }

 private:
  __device__ int CountFrom(int64_t first) const {
    return features_ - first < kNormRow ? static_cast<int>(features_ - first) : kNormRow;
  }
  __device__ void Load(int64_t first) const {
    const int count = CountFrom(first);
#pragma unroll 8
    for (int i = threadIdx.x; i < count; i += kNormThreads) shared_[i] = row_[first + i];
    __syncthreads();
  }

  const float* const row_;
  const int64_t features_;
  const SharedPtr<float> shared_;  // and the sum behind it
};

// Weights are no other launch's, and come while the one before ends.
class NormWeights {
 public:
  __device__ NormWeights(const float* weights, int64_t features)
      : weights_(weights), features_(features) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * kNormThreads;
      held_[i] = e < features ? weights[e] : 0.0f;
    }
  }
  // function(e, weight) for this thread's elements.
  template <typename Function>
  __device__ void ForEach(const Function& function) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * kNormThreads;
      if (e < features_) function(e, held_[i]);
    }
    for (int64_t e = threadIdx.x + kNormRow; e < features_; e += kNormThreads) {
      function(e, weights_[e]);
    }
  }

 private:
  const float* const weights_;
  const int64_t features_;
  float held_[kHeld];
};

// What numbers of a row become; of LayerNorm if kCenters, else of RmsNorm.
template <bool kCenters>
class Normed {
 public:
  __device__ Normed(const NormRow& row, const NormLaunch& norm)
      : row_(row), bias_(norm.bias), mean_(0.0f) {
    const auto count = static_cast<float>(norm.features);
    if constexpr (kCenters) mean_ = row.Sum([](float x) { return x; }) / count;
    const float variance = row.Sum([this](float x) { return Centered(x) * Centered(x); }) / count;
    scale_ = 1.0f / __fsqrt_rn(variance + norm.epsilon);
  }
  __device__ float operator()(int64_t e, float weight) const {
    const float y = (Centered(row_[e]) * scale_) * weight;
    return kCenters ? y + bias_[e] : y;
  }

 private:
  __device__ float Centered(float x) const { return kCenters ? x - mean_ : x; }

  const NormRow& row_;
  const float* const bias_;
  float mean_;
  float scale_;
};

template <bool kCenters>
__global__ void TANDEM_THREADS(kNormThreads, 1) NormKernel(NormLaunch norm) {
  LetNextLaunchBegin();
  const NormWeights weights(norm.weight, norm.features);
  WaitForLaunchBefore();
  const int64_t begin = int64_t{blockIdx.x} * norm.features;
  const NormRow row(norm.input + begin, norm.features);
  const Normed<kCenters> normed(row, norm);
  weights.ForEach([&](int64_t e, float weight) {
    Store(norm.output_dtype, norm.output, begin + e, normed(e, weight));
  });
}

struct NormQuantizeLaunch {
  NormLaunch norm;
  QuantizedRows to;
};

// What NormKernel writes, in 8 bits.
template <bool kCenters>
__global__ void TANDEM_THREADS(kNormThreads, 1) NormQuantizeKernel(NormQuantizeLaunch launch) {
  LetNextLaunchBegin();
  const NormLaunch& norm = launch.norm;
  const QuantizedRows& to = launch.to;
  const NormWeights weights(norm.weight, norm.features);
  WaitForLaunchBefore();
  const int64_t r = blockIdx.x;
  const NormRow row(norm.input + r * norm.features, norm.features);
  const Normed<kCenters> normed(row, norm);
  uint32_t absmax = 0;
  weights.ForEach([&](int64_t e, float weight) {
    const uint32_t bits = MagnitudeBits(Rounded(norm.output_dtype, normed(e, weight)));
    absmax = bits > absmax ? bits : absmax;
  });
  const SharedPtr<uint32_t> of_warps = SharedCast<uint32_t>(SharedMemory()) + (kNormRow + 1);
  const float scale = Int8Scale(__uint_as_float(LargestOfBlock<kNormWarps>(absmax, of_warps)));
  if (threadIdx.x == 0) to.scales[r * kNumLinearSegments] = scale;
  int8_t* const numbers = to.numbers + r * to.stride;
  weights.ForEach([&](int64_t e, float weight) {
    numbers[e] = static_cast<int8_t>(ToInt8(Rounded(norm.output_dtype, normed(e, weight)), scale));
  });
  for (int64_t e = norm.features + threadIdx.x; e < to.stride; e += kNormThreads) numbers[e] = 0;
}

// ---- one block a row ----

__global__ void TANDEM_THREADS(kThreads, 1) EmbeddingKernel(HostEmbeddingArgs args) {
  BeginLaunch();
  const int64_t row = blockIdx.x;
  const int64_t from = TokenOf(args, row) * args.features;
  const bool has_positions = args.position_table != nullptr;
  const int64_t position = has_positions ? int64_t{args.positions[row]} * args.features : 0;
  for (int64_t e = threadIdx.x; e < args.features; e += kThreads) {
    float value = Load(args.table_dtype, args.table, from + e);
    if (has_positions) value = value + Load(args.table_dtype, args.position_table, position + e);
    args.output[row * args.features + e] = value;
  }
}

// One block so many elements of a row.
constexpr int kActivated = 4 * kThreads;

__global__ void TANDEM_THREADS(kThreads, 1) ActivateKernel(ActivateLaunch args) {
  BeginLaunch();
  const auto blocks = static_cast<unsigned>((args.features + kActivated - 1) / kActivated);
  const int64_t row = blockIdx.x / blocks;
  const int64_t begin = int64_t{blockIdx.x % blocks} * kActivated;
  const int64_t end = begin + kActivated < args.features ? begin + kActivated : args.features;
#pragma unroll 4
  for (int64_t e = begin + threadIdx.x; e < end; e += kThreads) {
    const int64_t from = row * args.input_stride + e;
    const float gate = Load(args.input_dtype, args.gate, from);
    float value = args.function == ActivationFunction::kSilu ? Silu(gate) : GeluTanh(gate);
    if (args.up != nullptr) value = value * Load(args.input_dtype, args.up, from);
    Store(args.output_dtype, args.output, row * args.features + e, value);
  }
}

__global__ void TANDEM_THREADS(kThreads, 1) GatherRowsKernel(HostGatherRowsArgs args) {
  BeginLaunch();
  const int64_t row = blockIdx.x;
  const int64_t from = int64_t{args.rows[row]} * args.features;
  const int64_t to = row * args.features;
  for (int64_t e = threadIdx.x; e < args.features; e += kThreads) {
    if (args.dtype == DType::kF32) {
      static_cast<float*>(args.output)[to + e] = static_cast<const float*>(args.input)[from + e];
    } else {
      static_cast<Bfloat16*>(args.output)[to + e] =
          static_cast<const Bfloat16*>(args.input)[from + e];
    }
  }
}

// ---- elements ----

__global__ void TANDEM_THREADS(kThreads, 1) AddKernel(HostAddArgs args) {
  BeginLaunch();
  const int64_t i = ElementOfThread();
  if (i < args.count) args.accumulator[i] = args.accumulator[i] + args.addend[i];
}

__global__ void TANDEM_THREADS(kThreads, 1) SoftCapKernel(HostSoftCapArgs args) {
  BeginLaunch();
  const int64_t i = ElementOfThread();
  if (i < args.count) args.values[i] = SoftCap(args.values[i], args.cap);
}

}  // namespace

cudaError_t CudaEmbedding(const HostEmbeddingArgs& args, cudaStream_t stream) {
  return Launch(EmbeddingKernel, {.blocks = args.num_rows, .threads = kThreads}, stream, args);
}

cudaError_t CudaNorm(const NormLaunch& norm, cudaStream_t stream) {
  const auto kernel = norm.bias == nullptr ? NormKernel<false> : NormKernel<true>;
  return Launch(kernel, NormShape(norm.num_rows), stream, norm);
}

cudaError_t CudaNormQuantize(const NormLaunch& norm, const QuantizedRows& to, cudaStream_t stream) {
  const auto kernel = norm.bias == nullptr ? NormQuantizeKernel<false> : NormQuantizeKernel<true>;
  const NormQuantizeLaunch launch{.norm = norm, .to = to};
  return Launch(kernel, NormShape(norm.num_rows), stream, launch);
}

cudaError_t CudaActivate(const ActivateLaunch& launch, cudaStream_t stream) {
  const int64_t blocks = (launch.features + kActivated - 1) / kActivated;
  return Launch(ActivateKernel, {.blocks = launch.num_rows * blocks, .threads = kThreads}, stream,
                launch);
}

cudaError_t CudaAdd(const HostAddArgs& args, cudaStream_t stream) {
  return Launch(AddKernel, {.blocks = BlocksOf(args.count), .threads = kThreads}, stream, args);
}

cudaError_t CudaSoftCap(const HostSoftCapArgs& args, cudaStream_t stream) {
  return Launch(SoftCapKernel, {.blocks = BlocksOf(args.count), .threads = kThreads}, stream, args);
}

cudaError_t CudaGatherRows(const HostGatherRowsArgs& args, cudaStream_t stream) {
  return Launch(GatherRowsKernel, {.blocks = args.num_rows, .threads = kThreads}, stream, args);
}

}  // namespace tandem
