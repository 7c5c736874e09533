// Layers whose weights are kept in 8 or 4 bits (kernels/support/int8.h, int4.h): inputs are made 8
// bits, a scale a row or, in segmented layers, one a row and segment; the tensor cores sum products
// of both exactly, of 4 bits group by group (tensor_linear.cu). The bits are those of every other
// backend.

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/cuda_rows.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/int8.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int kQuantizeThreads = 256;
constexpr int kQuantizeWarps = kQuantizeThreads / 32;

struct QuantizeLaunch {
  PackedLinear layer;
  const void* input;  // [R, K] compute_dtype
  QuantizedRows to;
};

// One block a (row, segment).
__global__ void TANDEM_THREADS(kQuantizeThreads, 1) QuantizeKernel(QuantizeLaunch launch) {
  BeginLaunch();
  const PackedLinear& layer = launch.layer;
  const int num_segments = layer.segmented ? kNumLinearSegments : 1;
  const int64_t row = blockIdx.x / num_segments;
  const auto segment = static_cast<int>(blockIdx.x % num_segments);
  const bool last = segment + 1 == num_segments;
  const int64_t begin = layer.segmented ? LinearSegmentBegin(layer.in_features, segment) : 0;
  const int64_t end = last ? layer.in_features : LinearSegmentBegin(layer.in_features, segment + 1);
  const int64_t from = row * layer.in_features;
  uint32_t absmax = 0;
  for (int64_t k = begin + threadIdx.x; k < end; k += kQuantizeThreads) {
    const uint32_t bits = MagnitudeBits(Load(layer.compute_dtype, launch.input, from + k));
    absmax = bits > absmax ? bits : absmax;
  }
  absmax = LargestOfBlock<kQuantizeWarps>(absmax, SharedCast<uint32_t>(SharedMemory()));
  const float scale = Int8Scale(__uint_as_float(absmax));
  if (threadIdx.x == 0) launch.to.scales[row * kNumLinearSegments + segment] = scale;
  const int64_t padded_end = last ? launch.to.stride : end;
  for (int64_t k = begin + threadIdx.x; k < padded_end; k += kQuantizeThreads) {
    const int32_t q =
        k < end ? ToInt8(Load(layer.compute_dtype, launch.input, from + k), scale) : 0;
    launch.to.numbers[row * launch.to.stride + k] = static_cast<int8_t>(q);
  }
}

cudaError_t Quantize(const QuantizeLaunch& launch, int64_t num_rows, cudaStream_t stream) {
  return Launch(QuantizeKernel,
                {.blocks = num_rows * (launch.layer.segmented ? kNumLinearSegments : 1),
                 .threads = kQuantizeThreads,
                 .shared_bytes = sizeof(uint32_t) * kQuantizeWarps},
                stream, launch);
}

size_t RowsBytes(const PackedLinear& layer, int64_t num_rows) {
  return static_cast<size_t>(num_rows * layer.num_chunks) * kInputBlockBytes;
}

size_t ScalesBytes(int64_t num_rows) {
  return RoundUp<size_t>(static_cast<size_t>(num_rows) * kNumLinearSegments * sizeof(float), 64);
}

}  // namespace

size_t Int8LinearScratchBytes(const PackedLinear& layer, int64_t num_rows,
                              const ProcessorLimits& limits) {
  return TensorSumsBytes(layer, num_rows, limits) + RowsBytes(layer, num_rows) +
         ScalesBytes(num_rows);
}

bool MayTakeNorm(const PackedLinear& layer) { return MultipliesInt8(layer) && !layer.segmented; }

cudaError_t Int8Linear(const PackedLinear& layer, const HostLinearArgs& args,
                       const NormLaunch* norm, void* scratch, const ProcessorLimits& limits,
                       cudaStream_t stream) {
  std::byte* const rows =
      static_cast<std::byte*>(scratch) + TensorSumsBytes(layer, args.num_rows, limits);
  auto* const scales = reinterpret_cast<float*>(rows + RowsBytes(layer, args.num_rows));
  const QuantizedRows to{.numbers = reinterpret_cast<int8_t*>(rows),
                         .stride = layer.num_chunks * kInputBlockBytes,
                         .scales = scales};
  const cudaError_t error =
      norm == nullptr
          ? Quantize({.layer = layer, .input = args.input, .to = to}, args.num_rows, stream)
          : CudaNormQuantize(*norm, to, stream);
  if (error != cudaSuccess) return error;
  return TensorLinear(layer, args, {.rows = rows, .row_bytes = to.stride, .row_scales = scales},
                      scratch, limits, stream);
}

}  // namespace tandem
