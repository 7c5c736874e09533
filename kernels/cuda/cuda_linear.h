// Linear layers on a GPU (kernels/api/linear.h): with the bits of the class `fma`, or bf16 on the
// tensor cores, which is a class of its own. Packing is on the host; a layer enqueues on `stream`
// and returns what the launches said. Arguments have been validated; inputs, outputs and packed
// weights are in device memory.

#ifndef TANDEM_KERNELS_CUDA_CUDA_LINEAR_H_
#define TANDEM_KERNELS_CUDA_CUDA_LINEAR_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/cuda/cuda_rows.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/processor_limits.h"
#include "kernels/support/host_args.h"

namespace tandem {

PackedFormat CudaPackedFormat(const LinearSpec& spec, CudaProducts products);
void CudaPack(const LinearSpec& spec, CudaProducts products, std::span<const WeightPart> parts,
              std::byte* packed);

// A layer as kernels see it.
struct PackedLinear {
  int64_t in_features;   // K
  int64_t out_features;  // N
  int64_t num_chunks;    // of an output: K in chunks, or blocks of tensor cores, rounded up
  bool segmented;
  bool on_tensor_cores;
  WeightType weight_type;
  DType compute_dtype;
  DType output_dtype;
  uint8_t
      group;  // LinearSpec::group of 4 bits; else 0. In a byte nothing behind it moves (README.md).
  const std::byte* panels;
  const float* scales;  // [N] of outputs kept in 8 bits; else null
};
// Whether inputs are made 8 bits.
inline bool MultipliesInt8(const PackedLinear& layer) {
  return layer.weight_type == WeightType::kInt8 || layer.weight_type == WeightType::kInt4;
}
// `packed` is null where only sizes are asked for.
PackedLinear PackedLinearOf(const LinearSpec& spec, CudaProducts products, const std::byte* packed);

// Bytes that a layer wants for `num_rows` rows while it runs; may be 0.
size_t CudaLinearScratchBytes(const PackedLinear& layer, const LinearSpec& spec, int64_t num_rows,
                              const ProcessorLimits& limits);
// `norm`, where the layer may take one, makes the rows that are multiplied; null: the input has
// them.
cudaError_t CudaLinear(const PackedLinear& layer, const HostLinearArgs& args,
                       const NormLaunch* norm, void* scratch, const ProcessorLimits& limits,
                       cudaStream_t stream);
// Whether rows are made 8 bits, one scale a row, so that a norm may make them so.
bool MayTakeNorm(const PackedLinear& layer);

// The parts of CudaLinear: weights of f32 and bf16 on the ordinary units, of 8 and 4 bits, and of
// bf16 on the tensor cores.
size_t FloatLinearScratchBytes(const PackedLinear& layer, int64_t num_rows);
cudaError_t FloatLinear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                        cudaStream_t stream);
size_t Int8LinearScratchBytes(const PackedLinear& layer, int64_t num_rows,
                              const ProcessorLimits& limits);
cudaError_t Int8Linear(const PackedLinear& layer, const HostLinearArgs& args,
                       const NormLaunch* norm, void* scratch, const ProcessorLimits& limits,
                       cudaStream_t stream);
size_t Bf16TensorScratchBytes(const PackedLinear& layer, int64_t num_rows,
                              const ProcessorLimits& limits);
cudaError_t Bf16TensorLinear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                             const ProcessorLimits& limits, cudaStream_t stream);

// Rows [R, K] of bf16 as [R, K rounded up to whole chunks], zeros at the end.
cudaError_t PadBf16Rows(const void* input, int64_t in_features, int64_t num_rows, void* rows,
                        cudaStream_t stream);

// Rows as tensor cores take them: of whole chunks, 16-byte aligned.
struct TensorInputs {
  const std::byte* rows;  // [R, row_bytes]
  int64_t row_bytes;
  const float* row_scales;  // [R, 8] of inputs of 8 bits, one a segment; else null
};
// What both of the latter have in common, with TensorSumsBytes for the sums of segments.
size_t TensorSumsBytes(const PackedLinear& layer, int64_t num_rows, const ProcessorLimits& limits);
cudaError_t TensorLinear(const PackedLinear& layer, const HostLinearArgs& args,
                         const TensorInputs& inputs, void* segment_sums,
                         const ProcessorLimits& limits, cudaStream_t stream);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_LINEAR_H_
