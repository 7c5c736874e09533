// Row operations on a GPU, bit for bit those of kernels/reference. Each enqueues on `stream` and
// returns what the launch said; arguments have been validated and point at device memory.

#ifndef TANDEM_KERNELS_CUDA_CUDA_ROWS_H_
#define TANDEM_KERNELS_CUDA_CUDA_ROWS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/support/host_args.h"

namespace tandem {

cudaError_t CudaEmbedding(const HostEmbeddingArgs& args, cudaStream_t stream);
cudaError_t CudaAdd(const HostAddArgs& args, cudaStream_t stream);
cudaError_t CudaSoftCap(const HostSoftCapArgs& args, cudaStream_t stream);
cudaError_t CudaGatherRows(const HostGatherRowsArgs& args, cudaStream_t stream);

// Either norm; RmsNorm where the bias is null.
using NormLaunch = HostLayerNormArgs;
inline NormLaunch NormLaunchOf(const HostLayerNormArgs& args) { return args; }
inline NormLaunch NormLaunchOf(const HostRmsNormArgs& args) {
  return {.input = args.input,
          .weight = args.weight,
          .bias = nullptr,
          .output = args.output,
          .num_rows = args.num_rows,
          .features = args.features,
          .epsilon = args.epsilon,
          .output_dtype = args.output_dtype};
}
cudaError_t CudaNorm(const NormLaunch& norm, cudaStream_t stream);

// Rows of numbers in 8 bits, as layers kept in 8 and 4 bits multiply them (kernels/support/int8.h).
struct QuantizedRows {
  int8_t* numbers;  // [R, stride], zeros behind a row's numbers
  int64_t stride;
  float* scales;  // [R, kNumLinearSegments]; of a row that has one scale, the first
};
// What CudaNorm writes in output_dtype, made 8 bits, one scale a row; that itself is not written.
cudaError_t CudaNormQuantize(const NormLaunch& norm, const QuantizedRows& to, cudaStream_t stream);

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
