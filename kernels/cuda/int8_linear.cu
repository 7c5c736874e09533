// Layers whose weights are kept in 8 bits (kernels/support/int8.h): inputs are made 8 bits, a scale
// a row or, in segmented layers, one a row and segment; products of both are summed exactly on the
// tensor cores, in any order, and so shared out as suits the device. The bits are those of every
// other backend.
//
//   few rows   A block has a panel; its eight warps have its segments, or an eighth of the inputs
//              each. Weights go from memory to registers as the products want them.
//   more rows  A block has 128 outputs of 128 rows; each warp 32 of 64. Both pass through a ring in
//              shared memory.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/linear_sums.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/int8.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;
static_assert(kWarps == kNumLinearSegments);
constexpr int kProductRows = 8;  // of one product
constexpr int kMaxFewRows = 32;

struct Int8Launch {
  PackedLinear layer;
  const void* input;    // [R, K] compute_dtype
  int8_t* rows;         // [R, padded_inputs]; past K zeros
  float* row_scales;    // [R, 8]; of the first alone where there are no segments
  const float* bias;    // [N], or null
  void* output;         // [R, N]
  int64_t num_rows;     // R
  int64_t padded_inputs;
  float* segment_sums;  // [8, R, N]: where more rows are segmented
};

// Steps of kInt8Step inputs: of a segment, or of all.
struct StepRange {
  int64_t begin;
  int64_t end;
};
__device__ __forceinline__ StepRange StepsOf(const PackedLinear& layer, int segment) {
  if (!layer.segmented) return {0, layer.num_chunks};
  return {LinearSegmentBegin(layer.in_features, segment) / kInt8Step,
          segment + 1 == kNumLinearSegments
              ? layer.num_chunks
              : LinearSegmentBegin(layer.in_features, segment + 1) / kInt8Step};
}

// ---- inputs ----

constexpr int kQuantizeThreads = 256;

// One block a (row, segment).
__global__ void TANDEM_THREADS(kQuantizeThreads, 1) QuantizeKernel(Int8Launch launch) {
  const SharedPtr<uint32_t> largest = SharedCast<uint32_t>(SharedMemory());  // [warp]
  const PackedLinear& layer = launch.layer;
  const int num_segments = layer.segmented ? kNumLinearSegments : 1;
  const int64_t row = blockIdx.x / num_segments;
  const auto segment = static_cast<int>(blockIdx.x % num_segments);
  const bool last = segment + 1 == num_segments;
  const int64_t begin = layer.segmented ? LinearSegmentBegin(layer.in_features, segment) : 0;
  const int64_t end =
      last ? layer.in_features : LinearSegmentBegin(layer.in_features, segment + 1);
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

// ---- few rows ----

// kTiles products of 8 rows side by side.
template <int kTiles>
__global__ void TANDEM_THREADS(kWarps* kWarp, 1) FewRowsInt8Kernel(Int8Launch launch) {
  constexpr int kRows = kTiles * kProductRows;
  constexpr int kAhead = kTiles == 1 ? 8 : 4;
  const PackedLinear& layer = launch.layer;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t panel = blockIdx.x;
  StepRange steps = StepsOf(layer, warp);
  if (!layer.segmented) {
    const int64_t each = (steps.end + kWarps - 1) / kWarps;
    const int64_t begin = warp * each;
    const int64_t end = begin + each < steps.end ? begin + each : steps.end;
    steps = {begin, begin < end ? end : begin};
  }
  const std::byte* const weights =
      layer.panels + panel * layer.num_chunks * kInt8StepBytes + lane * kChunkBytes;
  const int8_t* const inputs = launch.rows + lane / 4 * launch.padded_inputs + lane % 4 * 4;
  int32_t sums[kTiles][4] = {};
  // So many steps, whose weights and inputs are under way at once.
  const auto multiply = [&]<int kSteps>(int64_t step) {
    uint4 w[kSteps];
    uint32_t x[kSteps][kTiles][2];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      w[i] = *reinterpret_cast<const uint4*>(weights + (step + i) * kInt8StepBytes);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const bool there = tile * kProductRows + lane / 4 < launch.num_rows;
        const int8_t* const from = inputs + tile * kProductRows * launch.padded_inputs +
                                   (step + i) * kInt8Step;
        x[i][tile][0] = there ? *reinterpret_cast<const uint32_t*>(from) : 0;
        x[i][tile][1] = there ? *reinterpret_cast<const uint32_t*>(from + 16) : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint32_t a[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) MmaInt8(sums[tile], a, x[i][tile]);
    }
  };
  int64_t step = steps.begin;
  for (; step + kAhead <= steps.end; step += kAhead) multiply.template operator()<kAhead>(step);
  for (; step < steps.end; ++step) multiply.template operator()<1>(step);

  const SharedPtr<int32_t> of_warps = SharedCast<int32_t>(SharedMemory());  // [warp, row, output]
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int output = lane / 4 + i / 2 * 8;
      const int row = tile * kProductRows + lane % 4 * 2 + i % 2;
      of_warps[(warp * kRows + row) * kPanelOutputs + output] = sums[tile][i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kPanelOutputs; i += kWarps * kWarp) {
    const int64_t row = i / kPanelOutputs;
    const int64_t n = panel * kPanelOutputs + i % kPanelOutputs;
    if (row >= launch.num_rows || n >= layer.out_features) continue;
    const float* const scales = launch.row_scales + row * kNumLinearSegments;
    if (layer.segmented) {
      float of_segments[kNumLinearSegments];
      for (int segment = 0; segment < kNumLinearSegments; ++segment) {
        const int32_t sum = of_warps[segment * kRows * kPanelOutputs + i];
        of_segments[segment] = static_cast<float>(sum) * scales[segment];
      }
      StoreOutput(launch, row, n, SegmentTree(of_segments, layer.in_features));
    } else {
      int32_t sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += of_warps[w * kRows * kPanelOutputs + i];
      StoreOutput(launch, row, n, static_cast<float>(sum) * scales[0]);
    }
  }
}

// ---- more rows ----

constexpr int kTileOutputs = 128;
constexpr int kTileRows = 128;
constexpr int kTileSteps = 2;  // of kInt8Step inputs, that are copied at once
constexpr int kRingStages = 4;
constexpr int kWarpPanels = 2;  // 32 outputs
constexpr int kWarpTiles = 8;   // 64 rows
// Rows so far apart that eight of them lie in different banks.
constexpr int kRowBytes = kTileSteps * kInt8Step + 16;
constexpr int kRowsBytes = kTileRows * kRowBytes;
constexpr int kTilePanels = kTileOutputs / kPanelOutputs;
constexpr int kPanelStageBytes = kTileSteps * kInt8StepBytes;
constexpr int kStageBytes = kRowsBytes + kTilePanels * kPanelStageBytes;

// One block a (tile of outputs, tile of rows, segment); warp w has panels w % 4, rows w / 4.
__global__ void TANDEM_THREADS(kWarps* kWarp, 1) TileInt8Kernel(Int8Launch launch) {
  const SharedPtr<std::byte> ring = SharedMemory();
  const PackedLinear& layer = launch.layer;
  const int thread = threadIdx.x;
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int64_t output_tiles = (layer.out_features + kTileOutputs - 1) / kTileOutputs;
  const int64_t row_tiles = (launch.num_rows + kTileRows - 1) / kTileRows;
  const int64_t row_tile = blockIdx.x % row_tiles;
  const int64_t output_tile = blockIdx.x / row_tiles % output_tiles;
  const auto segment = static_cast<int>(blockIdx.x / (output_tiles * row_tiles));
  const StepRange steps = StepsOf(layer, segment);
  const int64_t first_row = row_tile * kTileRows;
  const int64_t tile_panel = output_tile * kTilePanels;
  const int64_t first_panel = tile_panel + warp % 4 * kWarpPanels;
  const int64_t num_panels = (layer.out_features + kPanelOutputs - 1) / kPanelOutputs;
  const int warp_row = warp / 4 * kWarpTiles * kProductRows;
  const auto num_stages =
      static_cast<int>((steps.end - steps.begin + kTileSteps - 1) / kTileSteps);

  const auto copy = [&](int stage) {
    if (stage < num_stages) {
      constexpr int kPieces = kTileSteps * kInt8Step / kChunkBytes;  // of a row
      const int64_t first_input = (steps.begin + int64_t{stage} * kTileSteps) * kInt8Step;
      const SharedPtr<std::byte> to = ring + stage % kRingStages * kStageBytes;
      for (int i = thread; i < kTileRows * kPieces; i += kWarps * kWarp) {
        const int row = i / kPieces;
        const int64_t input = first_input + i % kPieces * kChunkBytes;
        const bool there = first_row + row < launch.num_rows && input < steps.end * kInt8Step;
        CopyAsync16(to + row * kRowBytes + i % kPieces * kChunkBytes,
                    there ? launch.rows + (first_row + row) * launch.padded_inputs + input
                          : launch.rows,
                    there);
      }
      const int64_t first_step = steps.begin + int64_t{stage} * kTileSteps;
      const int64_t left = (steps.end - first_step) * kInt8StepBytes;
      for (int i = thread * kChunkBytes; i < kTilePanels * kPanelStageBytes;
           i += kWarps * kWarp * kChunkBytes) {
        const int64_t panel = tile_panel + i / kPanelStageBytes;
        const int at = i % kPanelStageBytes;
        const bool there = panel < num_panels && at < left;
        CopyAsync16(to + kRowsBytes + i,
                    there ? layer.panels +
                                (panel * layer.num_chunks + first_step) * kInt8StepBytes + at
                          : layer.panels,
                    there);
      }
    }
    CommitCopies();
  };

  int32_t sums[kWarpPanels][kWarpTiles][4] = {};
  for (int stage = 0; stage < kRingStages - 1; ++stage) copy(stage);
  for (int stage = 0; stage < num_stages; ++stage) {
    WaitForCopies<kRingStages - 2>();
    __syncthreads();
    copy(stage + kRingStages - 1);  // Where the stage before this one was.
    const SharedPtr<std::byte> rows = ring + stage % kRingStages * kStageBytes;
    const SharedPtr<std::byte> panels =
        rows + kRowsBytes + warp % 4 * kWarpPanels * kPanelStageBytes + lane * kChunkBytes;
#pragma unroll
    for (int s = 0; s < kTileSteps; ++s) {
      uint4 w[kWarpPanels];
#pragma unroll
      for (int p = 0; p < kWarpPanels; ++p) {
        w[p] = SharedCast<uint4>(panels + p * kPanelStageBytes + s * kInt8StepBytes)[0];
      }
#pragma unroll
      for (int tile = 0; tile < kWarpTiles; ++tile) {
        const SharedPtr<uint32_t> row = SharedCast<uint32_t>(
            rows + (warp_row + tile * kProductRows + lane / 4) * kRowBytes + s * kInt8Step);
        const uint32_t b[2] = {row[lane % 4], row[lane % 4 + 4]};
#pragma unroll
        for (int p = 0; p < kWarpPanels; ++p) {
          const uint32_t a[4] = {w[p].x, w[p].y, w[p].z, w[p].w};
          MmaInt8(sums[p][tile], a, b);
        }
      }
    }
  }

#pragma unroll
  for (int p = 0; p < kWarpPanels; ++p) {
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t n = (first_panel + p) * kPanelOutputs + lane / 4 + i / 2 * 8;
        const int64_t row = first_row + warp_row + tile * kProductRows + lane % 4 * 2 + i % 2;
        if (n >= layer.out_features || row >= launch.num_rows) continue;
        const float sum = static_cast<float>(sums[p][tile][i]) *
                          launch.row_scales[row * kNumLinearSegments + segment];
        StoreSum(launch, segment, row, n, sum);
      }
    }
  }
}

template <int kTiles>
cudaError_t LaunchFewRows(const Int8Launch& launch, cudaStream_t stream) {
  return Launch(FewRowsInt8Kernel<kTiles>,
                {.blocks = CeilDiv<int64_t>(launch.layer.out_features, kPanelOutputs),
                 .threads = kWarps * kWarp,
                 .shared_bytes = sizeof(int32_t) * kWarps * kTiles * kProductRows * kPanelOutputs},
                stream, launch);
}

size_t RowsBytes(const PackedLinear& layer, int64_t num_rows) {
  return static_cast<size_t>(num_rows * layer.num_chunks) * kInt8Step;
}

size_t ScalesBytes(int64_t num_rows) {
  return RoundUp<size_t>(static_cast<size_t>(num_rows) * kNumLinearSegments * sizeof(float), 64);
}

}  // namespace

size_t Int8LinearScratchBytes(const PackedLinear& layer, int64_t num_rows) {
  const size_t sums = layer.segmented && num_rows > kMaxFewRows
                          ? static_cast<size_t>(kNumLinearSegments * num_rows *
                                                layer.out_features) * sizeof(float)
                          : 0;
  return RowsBytes(layer, num_rows) + ScalesBytes(num_rows) + sums;
}

cudaError_t Int8Linear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                       cudaStream_t stream) {
  auto* const rows = static_cast<std::byte*>(scratch);
  std::byte* const scales = rows + RowsBytes(layer, args.num_rows);
  const Int8Launch launch{.layer = layer,
                          .input = args.input,
                          .rows = reinterpret_cast<int8_t*>(rows),
                          .row_scales = reinterpret_cast<float*>(scales),
                          .bias = args.bias,
                          .output = args.output,
                          .num_rows = args.num_rows,
                          .padded_inputs = layer.num_chunks * kInt8Step,
                          .segment_sums =
                              reinterpret_cast<float*>(scales + ScalesBytes(args.num_rows))};
  const int64_t num_segments = layer.segmented ? kNumLinearSegments : 1;
  cudaError_t error = Launch(QuantizeKernel,
                             {.blocks = args.num_rows * num_segments,
                              .threads = kQuantizeThreads,
                              .shared_bytes = sizeof(uint32_t) * kQuantizeThreads / kWarp},
                             stream, launch);
  if (error != cudaSuccess) return error;
  if (args.num_rows <= 8) return LaunchFewRows<1>(launch, stream);
  if (args.num_rows <= 16) return LaunchFewRows<2>(launch, stream);
  if (args.num_rows <= kMaxFewRows) return LaunchFewRows<4>(launch, stream);
  const int64_t tiles = CeilDiv<int64_t>(layer.out_features, kTileOutputs) *
                        CeilDiv<int64_t>(args.num_rows, kTileRows);
  error = Launch(TileInt8Kernel,
                 {.blocks = tiles * num_segments,
                  .threads = kWarps * kWarp,
                  .shared_bytes = static_cast<size_t>(kRingStages) * kStageBytes},
                 stream, launch);
  if (error != cudaSuccess || !layer.segmented) return error;
  return SumSegments(launch, stream);
}

}  // namespace tandem
