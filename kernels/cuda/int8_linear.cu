// Layers whose weights are kept in 8 or 4 bits (kernels/support/int8.h, int4.h): inputs are made 8
// bits, a scale a row or, in segmented layers, one a row and segment; the tensor cores sum products
// of both exactly, of 4 bits group by group (tensor_linear.cu). The bits are those of every other
// backend.

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/int8.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int kWarp = 32;
constexpr int kQuantizeThreads = 256;

struct QuantizeLaunch {
  PackedLinear layer;
  const void* input;  // [R, K] compute_dtype
  int8_t* rows;       // [R, padded_inputs]; past K zeros
  float* row_scales;  // [R, 8]; of the first alone where there are no segments
  int64_t padded_inputs;
};

// One block a (row, segment).
__global__ void TANDEM_THREADS(kQuantizeThreads, 1) QuantizeKernel(QuantizeLaunch launch) {
  BeginLaunch();
  const SharedPtr<uint32_t> largest = SharedCast<uint32_t>(SharedMemory());  // [warp]
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
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, absmax, step);
    absmax = other > absmax ? other : absmax;
  }
  if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = absmax;
  __syncthreads();
  for (int warp = 0; warp < kQuantizeThreads / kWarp; ++warp) {
    const uint32_t other = largest[warp];
    absmax = other > absmax ? other : absmax;
  }
  const float scale = Int8Scale(__uint_as_float(absmax));
  if (threadIdx.x == 0) launch.row_scales[row * kNumLinearSegments + segment] = scale;
  const int64_t padded_end = last ? launch.padded_inputs : end;
  for (int64_t k = begin + threadIdx.x; k < padded_end; k += kQuantizeThreads) {
    const int32_t q =
        k < end ? ToInt8(Load(layer.compute_dtype, launch.input, from + k), scale) : 0;
    launch.rows[row * launch.padded_inputs + k] = static_cast<int8_t>(q);
  }
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

cudaError_t Int8Linear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                       const ProcessorLimits& limits, cudaStream_t stream) {
  std::byte* const rows =
      static_cast<std::byte*>(scratch) + TensorSumsBytes(layer, args.num_rows, limits);
  auto* const scales = reinterpret_cast<float*>(rows + RowsBytes(layer, args.num_rows));
  const QuantizeLaunch launch{.layer = layer,
                              .input = args.input,
                              .rows = reinterpret_cast<int8_t*>(rows),
                              .row_scales = scales,
                              .padded_inputs = layer.num_chunks * kInputBlockBytes};
  const cudaError_t error =
      Launch(QuantizeKernel,
             {.blocks = args.num_rows * (layer.segmented ? kNumLinearSegments : 1),
              .threads = kQuantizeThreads,
              .shared_bytes = sizeof(uint32_t) * kQuantizeThreads / kWarp},
             stream, launch);
  if (error != cudaSuccess) return error;
  return TensorLinear(
      layer, args,
      {.rows = rows, .row_bytes = layer.num_chunks * kInputBlockBytes, .row_scales = scales},
      scratch, limits, stream);
}

}  // namespace tandem
