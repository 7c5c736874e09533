// Whether products of four warps (wgmma) sum as those of one (mma.sync) do. No manual says so, and
// rows have to have the same bits by either (wgmma_prefill.cu, wgmma_linear.cu): so a device is
// asked. The numbers are such as would show another sum: of many magnitudes, that cancel, and
// denormal ones.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/simt.h"

namespace tandem {
namespace {

constexpr int kTrialThreads = 128;
constexpr int kTrialSteps = 4;  // of one chain; a row of B is 128 bytes
constexpr int kRowBytes = 128;
constexpr int kStepBytes = 32;
constexpr int kCases = 4;
constexpr int kQueryColumns = 64;   // as products with K have them
constexpr int kNarrowColumns = 96;  // and with V of some heads
constexpr int kValueColumns = 128;  // and of the widest
constexpr int kRowColumns = 256;    // and linear layers' with rows

struct TrialCounts {
  uint64_t compared;
  uint64_t different;
};
struct TrialLaunch {
  TrialCounts* counts;
};

__device__ __forceinline__ uint32_t Mixed(uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

// Number k of row `row` of A, or of column `row` of B, bits of bf16.
__device__ __forceinline__ uint32_t NumberOf(unsigned kind, bool is_b, int row, int k) {
  const uint32_t mixed = Mixed(kind << 24 | static_cast<uint32_t>(is_b) << 20 |
                               static_cast<uint32_t>(row) << 8 | static_cast<uint32_t>(k));
  const uint32_t sign = mixed & 0x8000u;
  const uint32_t fraction = mixed & 0x7Fu;
  const uint32_t drawn = mixed >> 16;
  if (kind == 0) return sign | (123 + drawn % 9) << 7 | fraction;
  if (kind == 1) return sign | (87 + drawn % 81) << 7 | fraction;
  if (kind == 2) {  // An odd product takes back the even one, but for its last place.
    const uint32_t even = Mixed(kind << 24 | static_cast<uint32_t>(is_b) << 20 |
                                static_cast<uint32_t>(row) << 8 | static_cast<uint32_t>(k & ~1));
    const uint32_t number = (even & 0x8000u) | (117 + (even >> 16) % 21) << 7 | (even & 0x7Fu);
    if (k % 2 == 0) return number;
    return is_b ? number ^ 0x8000u ^ (drawn & 1u) : number;
  }
  if (is_b) return sign | (90 + drawn % 40) << 7 | fraction;
  return sign | (drawn % 8 == 0 ? 0 : 1 + drawn % 24) << 7 | fraction;
}
__device__ __forceinline__ uint32_t PairOf(unsigned kind, bool is_b, int row, int k) {
  return NumberOf(kind, is_b, row, k) | NumberOf(kind, is_b, row, k + 1) << 16;
}

// A block a kind of numbers: a chain of steps, which begins anew or at what the chain before has.
template <int kColumns>
__device__ __forceinline__ void Try(const TrialLaunch& launch) {
  const unsigned kind = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const SharedPtr<std::byte> matrix = SharedMemory();
  for (int i = thread; i < kColumns * kRowBytes / 4; i += kTrialThreads) {
    const int row = i / (kRowBytes / 4);
    const int word = i % (kRowBytes / 4);
    SharedCast<uint32_t>(matrix + row * kRowBytes)[(word / 4 ^ row % 8) * 4 + word % 4] =
        PairOf(kind, /*is_b=*/true, row, word * 2);
  }
  FenceAsyncReads();
  __syncthreads();
  const int first_row = thread / 32 * 16 + thread % 32 / 4;
  const int first_k = thread % 4 * 2;
  uint32_t a[kTrialSteps][4];
#pragma unroll
  for (int step = 0; step < kTrialSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[step][i] =
          PairOf(kind, /*is_b=*/false, first_row + i % 2 * 8, step * 16 + first_k + i / 2 * 8);
    }
  }
  float sums[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[i] = 0.0f;
  Settle(sums, kColumns / 2);
  FenceProducts();
#pragma unroll
  for (int step = 0; step < kTrialSteps; ++step) {
    WarpgroupMma<kColumns>(sums, a[step], SwizzledMatrix(matrix + step * kStepBytes),
                           kColumns != kQueryColumns || step > 0);
  }
  CommitProducts();
  WaitForProducts<0>();
  Settle(sums, kColumns / 2);
  uint64_t different = 0;
#pragma unroll
  for (int eight = 0; eight < kColumns / 8; ++eight) {
    float expected[4] = {};
#pragma unroll
    for (int step = 0; step < kTrialSteps; ++step) {
      uint32_t b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        b[i] =
            PairOf(kind, /*is_b=*/true, eight * 8 + thread % 32 / 4, step * 16 + first_k + i * 8);
      }
      MmaBf16(expected, a[step], b);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (__float_as_uint(expected[i]) != __float_as_uint(sums[eight * 4 + i])) ++different;
    }
  }
  AddGlobal(&launch.counts->compared, kColumns / 2);
  AddGlobal(&launch.counts->different, different);
}

template <int kColumns>
__global__ void TANDEM_THREADS(kTrialThreads, 1) WgmmaTrialKernel(TrialLaunch launch) {
  BeginLaunch();
  if (HasWarpgroupProducts()) Try<kColumns>(launch);
}

template <int kColumns>
cudaError_t LaunchTrial(const TrialLaunch& launch, cudaStream_t stream) {
  return Launch(
      WgmmaTrialKernel<kColumns>,
      {.blocks = kCases, .threads = kTrialThreads, .shared_bytes = size_t{kColumns} * kRowBytes},
      stream, launch);
}

cudaError_t CountTrials(TrialCounts* counts, TrialCounts* counted, cudaStream_t stream) {
  static constexpr TrialCounts kNone = {};
  const TrialLaunch launch{.counts = counts};
  cudaError_t error =
      cudaMemcpyAsync(counts, &kNone, sizeof(kNone), cudaMemcpyHostToDevice, stream);
  if (error == cudaSuccess) error = LaunchTrial<kQueryColumns>(launch, stream);
  if (error == cudaSuccess) error = LaunchTrial<kNarrowColumns>(launch, stream);
  if (error == cudaSuccess) error = LaunchTrial<kValueColumns>(launch, stream);
  if (error == cudaSuccess) error = LaunchTrial<kRowColumns>(launch, stream);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(counted, counts, sizeof(*counts), cudaMemcpyDeviceToHost, stream);
  }
  const cudaError_t waited = cudaStreamSynchronize(stream);
  return error == cudaSuccess ? waited : error;
}

}  // namespace

cudaError_t TryWarpgroups(cudaStream_t stream, WarpgroupTrial* trial) {
  constexpr uint64_t kAll = uint64_t{kCases} * kTrialThreads *
                            (kQueryColumns + kNarrowColumns + kValueColumns + kRowColumns) / 2;
  void* counts = nullptr;
  if (const cudaError_t error = cudaMalloc(&counts, sizeof(TrialCounts)); error != cudaSuccess) {
    return error;
  }
  TrialCounts counted = {};
  const cudaError_t error = CountTrials(static_cast<TrialCounts*>(counts), &counted, stream);
  (void)cudaFree(counts);
  *trial = {.wanted = kAll, .compared = counted.compared, .different = counted.different};
  return error;
}

}  // namespace tandem
