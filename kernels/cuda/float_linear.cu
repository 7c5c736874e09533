// Layers whose weights are numbers of f32 or bf16: one accumulator an output element, inputs in
// order, bf16 two by two with the odd one first, each product and its addition rounded once
// (docs/numerics.md, Matrix products). That leaves outputs, rows and segments to share out, but
// never the inputs.
//
//   few rows   A warp has a panel (of a segment); each of its halves has half of the rows. Weights
//              stream through a ring in shared memory that other warps fill, by asynchronous copies
//              as deep as the memory's latency wants. Rows are widened to f32 before.
//   more rows  A block has 128 outputs of 64 rows; each thread 8 of 4.
//
// Segments are computed apart, and added by a kernel of their own.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/simt.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int kWarp = 32;
constexpr int kMaxFewRows = 16;

// What a chunk of 16 bytes holds.
struct F32Weights {
  static constexpr DType kDType = DType::kF32;
  static constexpr int kInputs = 4;
  __device__ static void Widen(const uint4& chunk, float (&to)[kInputs]) {
    to[0] = __uint_as_float(chunk.x);
    to[1] = __uint_as_float(chunk.y);
    to[2] = __uint_as_float(chunk.z);
    to[3] = __uint_as_float(chunk.w);
  }
};
// Numbers in the order in which they are added.
struct Bf16Weights {
  static constexpr DType kDType = DType::kBF16;
  static constexpr int kInputs = 8;
  __device__ static void Widen(const uint4& chunk, float (&to)[kInputs]) {
    const uint32_t pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = SecondOf(pairs[i]);
      to[2 * i + 1] = FirstOf(pairs[i]);
    }
  }
};

struct FloatLaunch {
  PackedLinear layer;
  const std::byte* input;   // [R, chunks, 16 bytes]; for few rows [R, chunks, numbers] of f32
  int64_t input_row_bytes;  // of either
  const float* bias;        // [N], or null
  void* output;             // [R, N]
  int64_t num_rows;         // R
  float* segment_sums;      // [8, R, N]: where there are segments
  bool adds_to_output;      // LinearArgs
};

// A sum over all inputs.
__device__ __forceinline__ void StoreOutput(const FloatLaunch& launch, int64_t row, int64_t n,
                                            float sum) {
  if (launch.bias != nullptr) sum = sum + launch.bias[n];
  const int64_t at = row * launch.layer.out_features + n;
  if (launch.adds_to_output) sum = static_cast<const float*>(launch.output)[at] + sum;
  Store(launch.layer.output_dtype, launch.output, at, sum);
}

// A sum over the inputs of a segment, or over all where there are none.
__device__ __forceinline__ void StoreSum(const FloatLaunch& launch, int segment, int64_t row,
                                         int64_t n, float sum) {
  if (launch.layer.segmented) {
    launch.segment_sums[(segment * launch.num_rows + row) * launch.layer.out_features + n] = sum;
  } else {
    StoreOutput(launch, row, n, sum);
  }
}

// Numbers to add of chunks [first, ..): the last chunk of all may have fewer. An odd last bf16
// input is paired with a zero.
template <typename Weights>
__device__ __forceinline__ int InputsFrom(const PackedLinear& layer, int64_t first, int chunks) {
  int64_t inputs = layer.in_features;
  if (Weights::kDType == DType::kBF16) inputs = (inputs + 1) / 2 * 2;
  const int64_t left = inputs - first * Weights::kInputs;
  return left < chunks * Weights::kInputs ? static_cast<int>(left) : chunks * Weights::kInputs;
}

// Chunks of one segment of the layer, or all.
struct ChunkRange {
  int64_t begin;
  int64_t end;
};
template <typename Weights>
__device__ __forceinline__ ChunkRange ChunksOf(const PackedLinear& layer, int segment) {
  if (!layer.segmented) return {0, layer.num_chunks};
  const int64_t end = LinearSegmentBegin(layer.in_features, segment + 1);
  return {LinearSegmentBegin(layer.in_features, segment) / Weights::kInputs,
          segment + 1 == kNumLinearSegments ? layer.num_chunks : end / Weights::kInputs};
}

// ---- few rows ----

// kPanels warps multiply, kCopiers more fill the ring. A stage is kStageChunks chunks of each
// panel, and of each row.
template <typename Weights, int kRows, int kPanels>
struct FewRows {
  static constexpr int kCopiers = 4;
  static constexpr int kThreads = (kPanels + kCopiers) * kWarp;
  static constexpr int kStageChunks = 8;
  static constexpr int kHalfRows = kRows / 2;
  static constexpr int kStageInputs = kStageChunks * Weights::kInputs;
  static constexpr int kPanelBytes = kStageChunks * kPanelOutputs * kChunkBytes;
  // The halves of a warp read rows in different banks.
  static constexpr int kRowBytes = kStageInputs * 4 + 16;
  static constexpr int kStageBytes = kPanels * kPanelBytes + kRows * kRowBytes;
  static constexpr int kWanted = (kPanels == 1 ? 40 : 98) * 1024 / kStageBytes;
  static constexpr int kStages = kWanted < 4 ? 4 : kWanted > 16 ? 16 : kWanted;
  static constexpr size_t kSharedBytes = static_cast<size_t>(kStages) * kStageBytes;
  static_assert(kSharedBytes <= kLeastSharedBytes);
};

// One block a (kPanels panels, segment).
template <typename Weights, int kRows, int kPanels>
__global__ void TANDEM_THREADS((FewRows<Weights, kRows, kPanels>::kThreads), 1)
    FewRowsKernel(FloatLaunch launch) {
  BeginLaunch();
  using Shape = FewRows<Weights, kRows, kPanels>;
  const PackedLinear& layer = launch.layer;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const auto num_panels =
      static_cast<int>((layer.out_features + kPanelOutputs - 1) / kPanelOutputs);
  const int panel_groups = (num_panels + kPanels - 1) / kPanels;
  const int first_panel = blockIdx.x % panel_groups * kPanels;
  const int segment = blockIdx.x / panel_groups;
  const ChunkRange chunks = ChunksOf<Weights>(layer, segment);
  const auto num_chunks = static_cast<int>(chunks.end - chunks.begin);
  const int num_stages = (num_chunks + Shape::kStageChunks - 1) / Shape::kStageChunks;

  // This copier's pieces of 16 bytes of every stage: kWeightPieces of weights, as all panels'
  // stages make a row, and kRowPieces of rows.
  constexpr int kCopierThreads = Shape::kCopiers * kWarp;
  constexpr int kWeightPieces = kPanels * Shape::kPanelBytes / kChunkBytes / kCopierThreads;
  constexpr int kPiecesOfRow = Shape::kStageInputs / 4;
  constexpr int kRowPieces = (kRows * kPiecesOfRow + kCopierThreads - 1) / kCopierThreads;
  const int copier = (warp - kPanels) * kWarp + lane;
  const std::byte* weights[kWeightPieces];
  const std::byte* rows[kRowPieces];
  if (copier >= 0) {
#pragma unroll
    for (int i = 0; i < kWeightPieces; ++i) {
      const int at = (i * kCopierThreads + copier) * kChunkBytes;
      const int64_t panel = first_panel + at / Shape::kPanelBytes;
      weights[i] = panel >= num_panels ? nullptr
                                       : layer.panels +
                                             (panel * layer.num_chunks + chunks.begin) *
                                                 kPanelOutputs * kChunkBytes +
                                             at % Shape::kPanelBytes;
    }
#pragma unroll
    for (int i = 0; i < kRowPieces; ++i) {
      const int index = i * kCopierThreads + copier;
      const int row = index / kPiecesOfRow;
      rows[i] = row >= launch.num_rows || row >= kRows
                    ? nullptr
                    : launch.input + row * launch.input_row_bytes +
                          (chunks.begin * Weights::kInputs / 4 + index % kPiecesOfRow) * 16;
    }
  }
  const auto copy = [&](int stage) {
    if (stage < num_stages) {
      const SharedPtr<std::byte> to = SharedMemory() + stage % Shape::kStages * Shape::kStageBytes;
      const int left = num_chunks - stage * Shape::kStageChunks;
#pragma unroll
      for (int i = 0; i < kWeightPieces; ++i) {
        const int at = (i * kCopierThreads + copier) * kChunkBytes;
        const bool valid =
            weights[i] != nullptr && at % Shape::kPanelBytes < left * (kPanelOutputs * kChunkBytes);
        CopyAsync16(to + at, valid ? weights[i] : layer.panels, valid);
        if (valid) weights[i] += Shape::kPanelBytes;
      }
#pragma unroll
      for (int i = 0; i < kRowPieces; ++i) {
        const int index = i * kCopierThreads + copier;
        if (index >= kRows * kPiecesOfRow) break;
        const bool valid =
            rows[i] != nullptr && index % kPiecesOfRow < left * (Weights::kInputs / 4);
        CopyAsync16(to + kPanels * Shape::kPanelBytes + index / kPiecesOfRow * Shape::kRowBytes +
                        index % kPiecesOfRow * 16,
                    valid ? rows[i] : launch.input, valid);
        if (valid) rows[i] += Shape::kStageInputs * 4;
      }
    }
    CommitCopies();
  };

  // acc[j] of lane l: output l % 16, row l / 16 · kHalfRows + j.
  const int first_row = lane / kPanelOutputs * Shape::kHalfRows;
  float acc[Shape::kHalfRows] = {};
  const auto add = [&](SharedPtr<std::byte> stage, int chunk, int inputs) {
    float w[Weights::kInputs];
    const uint4 weight =
        SharedCast<uint4>(stage + warp * Shape::kPanelBytes +
                          (chunk * kPanelOutputs + lane % kPanelOutputs) * kChunkBytes)[0];
    Weights::Widen(weight, w);
#pragma unroll
    for (int j = 0; j < Shape::kHalfRows; ++j) {
      const SharedPtr<float4> row =
          SharedCast<float4>(stage + kPanels * Shape::kPanelBytes +
                             (first_row + j) * Shape::kRowBytes + chunk * Weights::kInputs * 4);
#pragma unroll
      for (int i = 0; i < Weights::kInputs; i += 4) {
        const float4 four = row[i / 4];
        const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (i + k < inputs) acc[j] = __fmaf_rn(w[i + k], x[k], acc[j]);
        }
      }
    }
  };

  const bool copies = warp >= kPanels;
  if (copies) {
    for (int stage = 0; stage < Shape::kStages - 1; ++stage) copy(stage);
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    if (copies) WaitForCopies<Shape::kStages - 2>();
    __syncthreads();
    if (copies) {
      copy(stage + Shape::kStages - 1);  // Where the stage before this one was.
      continue;
    }
    const SharedPtr<std::byte> here = SharedMemory() + stage % Shape::kStages * Shape::kStageBytes;
    const int inputs = InputsFrom<Weights>(
        layer, chunks.begin + int64_t{stage} * Shape::kStageChunks, Shape::kStageChunks);
    if (num_chunks - stage * Shape::kStageChunks >= Shape::kStageChunks &&
        inputs == Shape::kStageInputs) {
#pragma unroll
      for (int chunk = 0; chunk < Shape::kStageChunks; ++chunk) add(here, chunk, Weights::kInputs);
    } else {
      const int left = num_chunks - stage * Shape::kStageChunks;
      for (int chunk = 0; chunk < left && chunk * Weights::kInputs < inputs; ++chunk) {
        add(here, chunk, inputs - chunk * Weights::kInputs);
      }
    }
  }
  if (copies) return;
  const int64_t n = int64_t{first_panel + warp} * kPanelOutputs + lane % kPanelOutputs;
  if (n >= layer.out_features) return;
  for (int j = 0; j < Shape::kHalfRows; ++j) {
    if (first_row + j < launch.num_rows) StoreSum(launch, segment, first_row + j, n, acc[j]);
  }
}

// ---- more rows ----

constexpr int kTileThreads = 256;
constexpr int kTileOutputs = 128;
constexpr int kTileRows = 64;
constexpr int kTileInputs = 16;
constexpr int kThreadOutputs = 8;  // two fours, 64 apart
constexpr int kThreadRows = 4;

// One block a (tile of outputs, tile of rows, segment).
template <typename Weights>
__global__ void TANDEM_THREADS(kTileThreads, 1) TileKernel(FloatLaunch launch) {
  BeginLaunch();
  constexpr int kChunks = kTileInputs / Weights::kInputs;  // of an output in a step
  constexpr int kWeightLoads = kTileOutputs * kChunks / kTileThreads;
  constexpr int kRowThreads = kTileRows * kChunks;  // so many threads load rows
  static_assert(kRowThreads <= kTileThreads && kWeightLoads >= 1);
  const SharedPtr<float> w_tile = SharedCast<float>(SharedMemory());    // [input, output]
  const SharedPtr<float> x_tile = w_tile + kTileInputs * kTileOutputs;  // [input, row]
  const PackedLinear& layer = launch.layer;
  const int thread = threadIdx.x;
  const int64_t output_tiles = (layer.out_features + kTileOutputs - 1) / kTileOutputs;
  const int64_t row_tiles = (launch.num_rows + kTileRows - 1) / kTileRows;
  const int64_t first_output = blockIdx.x % output_tiles * kTileOutputs;
  const int64_t first_row = blockIdx.x / output_tiles % row_tiles * kTileRows;
  const auto segment = static_cast<int>(blockIdx.x / (output_tiles * row_tiles));
  const ChunkRange chunks = ChunksOf<Weights>(layer, segment);

  uint4 weights[kWeightLoads];
  uint4 row;
  const auto load = [&](int64_t first) {
#pragma unroll
    for (int i = 0; i < kWeightLoads; ++i) {
      const int index = i * kTileThreads + thread;
      const int64_t n = first_output + index % kTileOutputs;
      const int64_t chunk = first + index / kTileOutputs;
      weights[i] = make_uint4(0, 0, 0, 0);
      if (n < layer.out_features && chunk < chunks.end) {
        weights[i] = *reinterpret_cast<const uint4*>(
            layer.panels +
            ((n / kPanelOutputs * layer.num_chunks + chunk) * kPanelOutputs + n % kPanelOutputs) *
                kChunkBytes);
      }
    }
    if (thread < kRowThreads) {
      const int64_t r = first_row + thread % kTileRows;
      const int64_t chunk = first + thread / kTileRows;
      row = make_uint4(0, 0, 0, 0);
      if (r < launch.num_rows && chunk < chunks.end) {
        row = *reinterpret_cast<const uint4*>(launch.input + r * launch.input_row_bytes +
                                              chunk * kChunkBytes);
      }
    }
  };
  const auto store = [&] {
    float numbers[Weights::kInputs];
#pragma unroll
    for (int i = 0; i < kWeightLoads; ++i) {
      const int index = i * kTileThreads + thread;
      Weights::Widen(weights[i], numbers);
#pragma unroll
      for (int k = 0; k < Weights::kInputs; ++k) {
        w_tile[(index / kTileOutputs * Weights::kInputs + k) * kTileOutputs +
               index % kTileOutputs] = numbers[k];
      }
    }
    if (thread < kRowThreads) {
      Weights::Widen(row, numbers);
#pragma unroll
      for (int k = 0; k < Weights::kInputs; ++k) {
        x_tile[(thread / kTileRows * Weights::kInputs + k) * kTileRows + thread % kTileRows] =
            numbers[k];
      }
    }
  };

  const int output = thread % 16 * 4;
  const int tile_row = thread / 16 * kThreadRows;
  float acc[kThreadRows][kThreadOutputs] = {};
  const auto add = [&](int k) {
    const float4 w0 = SharedCast<float4>(w_tile + k * kTileOutputs + output)[0];
    const float4 w1 = SharedCast<float4>(w_tile + k * kTileOutputs + output + 64)[0];
    const float4 x = SharedCast<float4>(x_tile + k * kTileRows + tile_row)[0];
    const float w[kThreadOutputs] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
    const float rows[kThreadRows] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
      for (int n = 0; n < kThreadOutputs; ++n) acc[r][n] = __fmaf_rn(w[n], rows[r], acc[r][n]);
    }
  };

  load(chunks.begin);
  for (int64_t first = chunks.begin; first < chunks.end; first += kChunks) {
    store();
    __syncthreads();
    load(first + kChunks);
    const int64_t here = chunks.end - first < kChunks ? chunks.end - first : kChunks;
    const int inputs = InputsFrom<Weights>(layer, first, static_cast<int>(here));
    if (inputs == kTileInputs) {
#pragma unroll
      for (int k = 0; k < kTileInputs; ++k) add(k);
    } else {
      for (int k = 0; k < inputs; ++k) add(k);
    }
    __syncthreads();
  }

#pragma unroll  // Or the sums are kept in memory.
  for (int r = 0; r < kThreadRows; ++r) {
    const int64_t at_row = first_row + tile_row + r;
    if (at_row >= launch.num_rows) break;
#pragma unroll
    for (int i = 0; i < kThreadOutputs; ++i) {
      const int64_t n = first_output + output + i % 4 + i / 4 * 64;
      if (n >= layer.out_features) continue;
      StoreSum(launch, segment, at_row, n, acc[r][i]);
    }
  }
}

// ---- segments ----

constexpr int kElementThreads = 256;

// Adds what StoreSum kept of the segments; one thread an output of a row.
__global__ void TANDEM_THREADS(kElementThreads, 1) SumSegmentsKernel(FloatLaunch launch) {
  BeginLaunch();
  const int64_t elements = launch.num_rows * launch.layer.out_features;
  const int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  if (i >= elements) return;
  float sums[kNumLinearSegments];
  for (int segment = 0; segment < kNumLinearSegments; ++segment) {
    sums[segment] = launch.segment_sums[segment * elements + i];
  }
  StoreOutput(launch, i / launch.layer.out_features, i % launch.layer.out_features,
              SegmentTree(sums, launch.layer.in_features));
}

// ---- rows as they are read ----

// Rows of whole chunks, zeros at the end.
struct RowsLaunch {
  const void* input;  // [R, K]
  void* rows;         // [R, chunks, numbers]: of the same type, or f32 in the order of the sums
  int64_t in_features;
  int64_t row_inputs;  // of whole chunks
  int64_t num_rows;
};

template <typename Weights, bool kWiden>
__global__ void TANDEM_THREADS(kElementThreads, 1) RowsKernel(RowsLaunch launch) {
  BeginLaunch();
  const int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  if (i >= launch.num_rows * launch.row_inputs) return;
  const int64_t row = i / launch.row_inputs;
  int64_t k = i % launch.row_inputs;
  // The odd one of a pair of bf16 goes first.
  if (kWiden && Weights::kDType == DType::kBF16) k ^= 1;
  const float x = k < launch.in_features
                      ? Load(Weights::kDType, launch.input, row * launch.in_features + k)
                      : 0.0f;
  Store(kWiden ? DType::kF32 : Weights::kDType, launch.rows, i, x);
}

template <typename Weights, bool kWiden>
cudaError_t LaunchRowsKernel(const void* input, int64_t in_features, int64_t num_rows, void* rows,
                             cudaStream_t stream) {
  const int64_t row_inputs = CeilDiv<int64_t>(in_features, Weights::kInputs) * Weights::kInputs;
  const RowsLaunch launch{.input = input,
                          .rows = rows,
                          .in_features = in_features,
                          .row_inputs = row_inputs,
                          .num_rows = num_rows};
  return Launch(RowsKernel<Weights, kWiden>,
                {.blocks = CeilDiv<int64_t>(num_rows * row_inputs, kElementThreads),
                 .threads = kElementThreads},
                stream, launch);
}

template <typename Weights, bool kWiden>
cudaError_t LaunchRows(FloatLaunch* launch, void* rows, cudaStream_t stream) {
  const void* const input = launch->input;
  launch->input = static_cast<const std::byte*>(rows);
  launch->input_row_bytes = launch->layer.num_chunks * Weights::kInputs *
                            static_cast<int64_t>(SizeOf(kWiden ? DType::kF32 : Weights::kDType));
  return LaunchRowsKernel<Weights, kWiden>(input, launch->layer.in_features, launch->num_rows, rows,
                                           stream);
}

// ---- launches ----

template <typename Weights, int kRows, int kPanels>
cudaError_t LaunchFewRowsOf(const FloatLaunch& launch, cudaStream_t stream) {
  using Shape = FewRows<Weights, kRows, kPanels>;
  const int64_t panels = CeilDiv<int64_t>(launch.layer.out_features, kPanelOutputs);
  return Launch(FewRowsKernel<Weights, kRows, kPanels>,
                {.blocks = CeilDiv<int64_t>(panels, kPanels) *
                           (launch.layer.segmented ? kNumLinearSegments : 1),
                 .threads = Shape::kThreads,
                 .shared_bytes = Shape::kSharedBytes},
                stream, launch);
}

template <typename Weights, int kRows>
cudaError_t LaunchFewRows(const FloatLaunch& launch, cudaStream_t stream) {
  // Where there are few panels each has a block, and so a processor, as far as these go.
  const int64_t warps = CeilDiv<int64_t>(launch.layer.out_features, kPanelOutputs) *
                        (launch.layer.segmented ? kNumLinearSegments : 1);
  return warps < 1024 ? LaunchFewRowsOf<Weights, kRows, 1>(launch, stream)
                      : LaunchFewRowsOf<Weights, kRows, 4>(launch, stream);
}

template <typename Weights>
cudaError_t LaunchLinear(FloatLaunch launch, void* rows, cudaStream_t stream) {
  const PackedLinear& layer = launch.layer;
  cudaError_t error = cudaSuccess;
  if (launch.num_rows <= kMaxFewRows) {
    error = LaunchRows<Weights, true>(&launch, rows, stream);
    if (error != cudaSuccess) return error;
    if (launch.num_rows <= 2) {
      error = LaunchFewRows<Weights, 2>(launch, stream);
    } else if (launch.num_rows <= 4) {
      error = LaunchFewRows<Weights, 4>(launch, stream);
    } else if (launch.num_rows <= 8) {
      error = LaunchFewRows<Weights, 8>(launch, stream);
    } else {
      error = LaunchFewRows<Weights, 16>(launch, stream);
    }
  } else {
    // A chunk is read at once, and so begins at a multiple of 16 bytes.
    if (launch.input_row_bytes != layer.num_chunks * kChunkBytes ||
        reinterpret_cast<uintptr_t>(launch.input) % kChunkBytes != 0) {
      error = LaunchRows<Weights, false>(&launch, rows, stream);
      if (error != cudaSuccess) return error;
    }
    error = Launch(TileKernel<Weights>,
                   {.blocks = CeilDiv<int64_t>(layer.out_features, kTileOutputs) *
                              CeilDiv<int64_t>(launch.num_rows, kTileRows) *
                              (layer.segmented ? kNumLinearSegments : 1),
                    .threads = kTileThreads,
                    .shared_bytes = sizeof(float) * kTileInputs * (kTileOutputs + kTileRows)},
                   stream, launch);
  }
  if (error != cudaSuccess || !layer.segmented) return error;
  return Launch(SumSegmentsKernel,
                {.blocks = CeilDiv<int64_t>(launch.num_rows * layer.out_features, kElementThreads),
                 .threads = kElementThreads},
                stream, launch);
}

size_t SumsBytes(const PackedLinear& layer, int64_t num_rows) {
  if (!layer.segmented) return 0;
  return RoundUp<size_t>(
      sizeof(float) * static_cast<size_t>(kNumLinearSegments * num_rows * layer.out_features), 64);
}

}  // namespace

cudaError_t PadBf16Rows(const void* input, int64_t in_features, int64_t num_rows, void* rows,
                        cudaStream_t stream) {
  return LaunchRowsKernel<Bf16Weights, /*kWiden=*/false>(input, in_features, num_rows, rows,
                                                         stream);
}

// Rows come behind sums. An input may begin anywhere, so that rows have room in any case.
size_t FloatLinearScratchBytes(const PackedLinear& layer, int64_t num_rows) {
  const size_t chunks = static_cast<size_t>(num_rows * layer.num_chunks);
  return SumsBytes(layer, num_rows) + 2 * chunks * kChunkBytes;
}

cudaError_t FloatLinear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                        cudaStream_t stream) {
  const FloatLaunch launch{
      .layer = layer,
      .input = static_cast<const std::byte*>(args.input),
      .input_row_bytes = layer.in_features * static_cast<int64_t>(SizeOf(layer.compute_dtype)),
      .bias = args.bias,
      .output = args.output,
      .num_rows = args.num_rows,
      .segment_sums = static_cast<float*>(scratch),
      .adds_to_output = args.adds_to_output};
  void* const rows = static_cast<std::byte*>(scratch) + SumsBytes(layer, args.num_rows);
  return layer.weight_type == WeightType::kF32 ? LaunchLinear<F32Weights>(launch, rows, stream)
                                               : LaunchLinear<Bf16Weights>(launch, rows, stream);
}

}  // namespace tandem
