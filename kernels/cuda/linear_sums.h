// Where the sums of a linear layer go, whatever its weights are kept in. A launch has, among its
// own arguments, `layer`, `bias`, `output`, `num_rows` (kernels/api/linear.h) and, for a layer in
// segments, `segment_sums` [8, R, N].

#ifndef TANDEM_KERNELS_CUDA_LINEAR_SUMS_H_
#define TANDEM_KERNELS_CUDA_LINEAR_SUMS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/simt.h"

namespace tandem {

// A sum over all inputs.
template <typename LinearLaunch>
__device__ __forceinline__ void StoreOutput(const LinearLaunch& launch, int64_t row, int64_t n,
                                            float sum) {
  const PackedLinear& layer = launch.layer;
  if (layer.scales != nullptr) sum = sum * layer.scales[n];
  if (launch.bias != nullptr) sum = sum + launch.bias[n];
  Store(layer.output_dtype, launch.output, row * layer.out_features + n, sum);
}

// A sum over the inputs of a segment, or over all where there are none.
template <typename LinearLaunch>
__device__ __forceinline__ void StoreSum(const LinearLaunch& launch, int segment, int64_t row,
                                         int64_t n, float sum) {
  const PackedLinear& layer = launch.layer;
  if (layer.segmented) {
    launch.segment_sums[(segment * launch.num_rows + row) * layer.out_features + n] = sum;
  } else {
    StoreOutput(launch, row, n, sum);
  }
}

inline constexpr int kSumThreads = 256;

// Adds what StoreSum kept of the segments; one thread an output of a row.
template <typename LinearLaunch>
__global__ void TANDEM_THREADS(kSumThreads, 1) SumSegmentsKernel(LinearLaunch launch) {
  const int64_t elements = launch.num_rows * launch.layer.out_features;
  const int64_t i = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (i >= elements) return;
  float sums[kNumLinearSegments];
  for (int segment = 0; segment < kNumLinearSegments; ++segment) {
    sums[segment] = launch.segment_sums[segment * elements + i];
  }
  StoreOutput(launch, i / launch.layer.out_features, i % launch.layer.out_features,
              SegmentTree(sums, launch.layer.in_features));
}

template <typename LinearLaunch>
cudaError_t SumSegments(const LinearLaunch& launch, cudaStream_t stream) {
  const int64_t elements = launch.num_rows * launch.layer.out_features;
  return Launch(SumSegmentsKernel<LinearLaunch>,
                {.blocks = (elements + kSumThreads - 1) / kSumThreads, .threads = kSumThreads},
                stream, launch);
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_LINEAR_SUMS_H_
