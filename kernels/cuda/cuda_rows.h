// Row operations on a GPU, bit for bit those of kernels/reference. Each enqueues on `stream` and
// returns what the launch said; arguments have been validated and point at device memory.

#ifndef TANDEM_KERNELS_CUDA_CUDA_ROWS_H_
#define TANDEM_KERNELS_CUDA_CUDA_ROWS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/support/host_args.h"

namespace tandem {

cudaError_t CudaEmbedding(const HostEmbeddingArgs& args, cudaStream_t stream);
cudaError_t CudaRmsNorm(const HostRmsNormArgs& args, cudaStream_t stream);
cudaError_t CudaLayerNorm(const HostLayerNormArgs& args, cudaStream_t stream);
cudaError_t CudaAdd(const HostAddArgs& args, cudaStream_t stream);
cudaError_t CudaSoftCap(const HostSoftCapArgs& args, cudaStream_t stream);
cudaError_t CudaGatherRows(const HostGatherRowsArgs& args, cudaStream_t stream);

// output = function(gate) · up; without an up, function(gate): behind the products of a linear
// layer that is activated (LinearSpec::activation).
struct ActivateLaunch {
  const void* gate;      // [R, E] input_dtype, rows input_stride apart
  const void* up;        // [R, E] input_dtype, rows input_stride apart; or null: not gated
  int64_t input_stride;  // elements; 2E when gate and up are one layer
  void* output;          // [R, E] output_dtype, overlaps no input
  int64_t num_rows;      // R
  int64_t features;      // E
  ActivationFunction function;
  DType input_dtype;
  DType output_dtype;
};
cudaError_t CudaActivate(const ActivateLaunch& launch, cudaStream_t stream);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_ROWS_H_
