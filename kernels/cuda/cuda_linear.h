// Linear layers on a GPU with the bits of the class `fma` (kernels/api/linear.h). Packing is on the
// host; a layer enqueues on `stream` and returns what the launches said. Arguments have been
// validated; inputs, outputs and packed weights are in device memory.

#ifndef TANDEM_KERNELS_CUDA_CUDA_LINEAR_H_
#define TANDEM_KERNELS_CUDA_CUDA_LINEAR_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/support/host_args.h"

namespace tandem {

PackedFormat CudaPackedFormat(const LinearSpec& spec);
void CudaPack(const LinearSpec& spec, std::span<const WeightPart> parts, std::byte* packed);

// A layer as kernels see it.
struct PackedLinear {
  int64_t in_features;   // K
  int64_t out_features;  // N
  int64_t num_chunks;    // of an output: K in pieces of ChunkInputs(), rounded up
  bool segmented;
  WeightType weight_type;
  DType compute_dtype;
  DType output_dtype;
  const std::byte* panels;
  const float* scales;  // [N] of outputs kept in 8 bits; else null
};
PackedLinear PackedLinearOf(const LinearSpec& spec, const std::byte* packed);

// Bytes that a layer wants for `num_rows` rows while it runs; may be 0.
size_t CudaLinearScratchBytes(const PackedLinear& layer, int64_t num_rows);
cudaError_t CudaLinear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                       cudaStream_t stream);

// The parts of CudaLinear: weights of f32 and bf16, and of 8 bits.
size_t FloatLinearScratchBytes(const PackedLinear& layer, int64_t num_rows);
cudaError_t FloatLinear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                        cudaStream_t stream);
size_t Int8LinearScratchBytes(const PackedLinear& layer, int64_t num_rows);
cudaError_t Int8Linear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                       cudaStream_t stream);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_LINEAR_H_
