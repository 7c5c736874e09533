// Linear layers on the tensor cores: weights of bf16 and 8-bit floats, summed as these do it, and
// of 8 and 4 bits, summed exactly. An output is a chain of products of one instruction, inputs
// ascending by steps, so that its bits are the same whatever the number of rows and whichever
// kernel computes it. Segments are computed apart, and added by a kernel of their own; many rows by
// warpgroups add them on their way.

#include "kernels/cuda/tensor_ring.h"

namespace tandem {
namespace {

constexpr int kMaxFewRows = 256;
constexpr int kSumThreads = 128;

// Adds what StoreProduct kept of the segments; one warp a (row chunk, panel, product).
__global__ void TANDEM_THREADS(kSumThreads, 1) SumProductsKernel(TensorLaunch launch) {
  BeginLaunch();
  const int products = launch.ring.rows / kProductRows;
  const int64_t warp = int64_t{blockIdx.x} * (kSumThreads / kWarp) + threadIdx.x / kWarp;
  const auto product = static_cast<int>(warp % products);
  const int64_t panel = warp / products % NumPanels(launch.layer);
  const int64_t chunk = warp / products / NumPanels(launch.layer);
  if (chunk >= launch.row_chunks) return;
  float4 kept[kNumLinearSegments];
#pragma unroll
  for (int segment = 0; segment < kNumLinearSegments; ++segment) {
    kept[segment] = launch.segment_sums[SegmentSumsAt(launch, segment, chunk, panel, product)];
  }
  float sums[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float of_segments[kNumLinearSegments];
#pragma unroll
    for (int segment = 0; segment < kNumLinearSegments; ++segment) {
      const float4& four = kept[segment];
      of_segments[segment] = i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
    }
    sums[i] = SegmentTree(of_segments, launch.layer.in_features);
  }
  StoreRows(launch, chunk * launch.ring.rows + product * kProductRows, panel, sums);
}

cudaError_t SumProducts(const TensorLaunch& launch, cudaStream_t stream) {
  const int64_t warps =
      launch.row_chunks * NumPanels(launch.layer) * (launch.ring.rows / kProductRows);
  return Launch(SumProductsKernel,
                {.blocks = CeilDiv<int64_t>(warps, kSumThreads / kWarp), .threads = kSumThreads},
                stream, launch);
}

// Weights of 4 bits have kernels for few rows alone, which take any number a few at a time.
bool AreFewRows(const PackedLinear& layer, int64_t num_rows) {
  return num_rows <= kMaxFewRows || layer.weight_type == WeightType::kInt4;
}
// Where some segment is empty, which no model's is, it is not worth registers to tell.
bool MultipliedByWarpgroups(const PackedLinear& layer, int64_t num_rows,
                            const ProcessorLimits& limits) {
  const bool may_be_empty =
      layer.segmented && layer.in_features < kNumLinearSegments * kLinearSegmentMultiple;
  return limits.has_warpgroup_products && !AreFewRows(layer, num_rows) && !may_be_empty;
}

// ---- rows of whole chunks ----

constexpr int64_t kChunkInputs = ChunkInputs(WeightType::kBF16);

int64_t ChunkRowBytes(const PackedLinear& layer) {
  return CeilDiv<int64_t>(layer.in_features, kChunkInputs) * kChunkBytes;
}

}  // namespace

size_t TensorSumsBytes(const PackedLinear& layer, int64_t num_rows, const ProcessorLimits& limits) {
  if (!layer.segmented) return 0;
  if (MultipliedByWarpgroups(layer, num_rows, limits)) {
    return WgmmaSumsBytes(layer, num_rows, limits);
  }
  // In whole chunks of rows, and panels.
  return sizeof(float) * static_cast<size_t>(kNumLinearSegments) *
         RoundUp<size_t>(static_cast<size_t>(num_rows), kTileRows) *
         RoundUp<size_t>(static_cast<size_t>(layer.out_features), kPanelOutputs);
}

cudaError_t TensorLinear(const PackedLinear& layer, const HostLinearArgs& args,
                         const TensorInputs& inputs, void* segment_sums,
                         const ProcessorLimits& limits, cudaStream_t stream) {
  TensorLaunch launch{.layer = layer,
                      .inputs = inputs,
                      .bias = args.bias,
                      .output = args.output,
                      .num_rows = args.num_rows,
                      .segment_sums = static_cast<float4*>(segment_sums),
                      .ring = {},
                      .row_chunks = 0,
                      .pass_panels = 0,
                      .adds_to_output = args.adds_to_output,
                      .gated = args.op->spec().gated,
                      .activation = args.op->spec().activation};
  if (MultipliedByWarpgroups(layer, args.num_rows, limits)) {
    return LaunchWgmmaRows(limits, stream, &launch);
  }
  const auto launch_rows = AreFewRows(layer, args.num_rows) ? LaunchFewRows : LaunchManyRows;
  const cudaError_t error = launch_rows(limits, stream, &launch);
  if (error != cudaSuccess || !layer.segmented) return error;
  return SumProducts(launch, stream);
}

// Inputs may begin anywhere, so that padded rows have room in any case.
size_t Bf16TensorScratchBytes(const PackedLinear& layer, int64_t num_rows,
                              const ProcessorLimits& limits) {
  return TensorSumsBytes(layer, num_rows, limits) +
         static_cast<size_t>(num_rows * ChunkRowBytes(layer));
}

cudaError_t Bf16TensorLinear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                             const ProcessorLimits& limits, cudaStream_t stream) {
  TensorInputs inputs = {.rows = static_cast<const std::byte*>(args.input),
                         .row_bytes = ChunkRowBytes(layer),
                         .row_scales = nullptr};
  if (layer.in_features % kChunkInputs != 0 ||
      reinterpret_cast<uintptr_t>(args.input) % kChunkBytes != 0) {
    std::byte* const rows =
        static_cast<std::byte*>(scratch) + TensorSumsBytes(layer, args.num_rows, limits);
    const cudaError_t error =
        PadBf16Rows(args.input, layer.in_features, args.num_rows, rows, stream);
    if (error != cudaSuccess) return error;
    inputs.rows = rows;
  }
  return TensorLinear(layer, args, inputs, scratch, limits, stream);
}

}  // namespace tandem
