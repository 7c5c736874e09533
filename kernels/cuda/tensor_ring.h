// What linear layers on the tensor cores have in common, few rows (tensor_few_rows.cu) and more
// (tensor_many_rows.cu, wgmma_linear.cu): the ring that weights and rows come through, what lanes
// read of it, and where sums go.
//
// A ring is made of stages, a block of inputs each. A stage is full once its copies are there, and
// free once the warps that multiply have left it.

#ifndef TANDEM_KERNELS_CUDA_TENSOR_RING_H_
#define TANDEM_KERNELS_CUDA_TENSOR_RING_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/vector_math.h"
#include "runtime/base/math.h"

namespace tandem {

inline constexpr int kWarp = 32;
inline constexpr int kWarps = 8;        // that multiply
inline constexpr int kProductRows = 8;  // of one product
// Pieces of 16 bytes that a stage has of a row.
inline constexpr int kRowPieces = kInputBlockBytes / kChunkBytes;

struct RingShape;

__device__ __forceinline__ uint4 LoadWeights(SharedPtr<std::byte> from) {
  return SharedCast<uint4>(from)[0];
}

// Panels whose bytes are what products take.
struct WholePanels {
  static constexpr int kLaneBytes = kChunkBytes;
  static constexpr int kMaxTiles = 8;
  __device__ static constexpr int PanelBytes(const RingShape&) { return kPanelBytes; }
  static constexpr int kPanelBytes = kBlockPanelBytes;
  // What a lane has of two steps.
  struct Two {
    uint4 steps[2];
    __device__ const uint4& Widened(int i) const { return steps[i]; }
  };
  // From the `step`-th step on; `from` is what the lane has of a panel's block.
  __device__ static Two Load(SharedPtr<std::byte> from, int step) {
    return {{LoadWeights(from + step * kStepPanelBytes),
             LoadWeights(from + (step + 1) * kStepPanelBytes)}};
  }
};

// What is multiplied: the numbers of a stage, kLaneBytes a lane of each panel's step, by so many
// times 8 rows at most at once.
struct Bf16Product : WholePanels {
  using Sum = float;
  static constexpr bool kScaled = false;
  __device__ static void Multiply(float (&d)[4], const uint4& a, const uint32_t (&b)[2]) {
    const uint32_t of_a[4] = {a.x, a.y, a.z, a.w};
    MmaBf16(d, of_a, b);
  }
};
struct Int8Product : WholePanels {
  using Sum = int32_t;
  static constexpr bool kScaled = true;
  __device__ static void Multiply(int32_t (&d)[4], const uint4& a, const uint32_t (&b)[2]) {
    const uint32_t of_a[4] = {a.x, a.y, a.z, a.w};
    MmaInt8(d, of_a, b);
  }
};

// A ring in shared memory, behind its barriers.
struct RingShape {
  int panels;  // that a stage has room for
  int rows;
  int panel_bytes = kBlockPanelBytes;
  int stages = 0;
  TANDEM_ANYWHERE int stage_bytes() const { return panels * panel_bytes + rows * kInputBlockBytes; }
};

// 4 bits, made 8 bits less their zero on the way: products are Int8Product's.
struct Int4Product {
  using Sum = float;
  static constexpr bool kScaled = true;
  static constexpr int kLaneBytes = kChunkBytes / 2;
  static constexpr int kMaxTiles = 4;  // It has twice as many sums.
  __device__ static int PanelBytes(const RingShape& ring) { return ring.panel_bytes; }
  // A lane's registers of a step. `scales`: of the outputs that registers 0 and 2, and 1 and 3,
  // have, each with its zero.
  __device__ static uint4 Widened(const uint2& halves, const uint32_t (&scales)[2]) {
    const uint32_t zeros[2] = {ZeroOf(scales[0]), ZeroOf(scales[1])};
    return make_uint4(Less(halves.x, zeros[0]), Less(halves.y, zeros[1]),
                      Less(halves.x >> 4, zeros[0]), Less(halves.y >> 4, zeros[1]));
  }
  __device__ static float ScaleOf(uint32_t scale) {
    return HalfToFloat(static_cast<uint16_t>(scale));
  }

 private:
  // In each of four bytes.
  __device__ static uint32_t ZeroOf(uint32_t scale) { return (scale >> 16 & 0xFFu) * 0x01010101u; }
  // Four numbers, the lower halves of bytes, less their zero: nothing is carried from byte to byte.
  __device__ static uint32_t Less(uint32_t numbers, uint32_t zeros) {
    constexpr uint32_t kSigns = 0x80808080u;
    return (((numbers & 0x0F0F0F0Fu) | kSigns) - zeros) ^ kSigns;
  }
};

// 8-bit floats, made bf16 on the way, with their scales: products are Bf16Product's.
struct Fp8Product {
  using Sum = float;
  static constexpr bool kScaled = false;
  static constexpr int kLaneBytes = kChunkBytes / 2;
  static constexpr int kMaxTiles = 8;
  __device__ static constexpr int PanelBytes(const RingShape&) { return kPanelBytes; }
  static constexpr int kPanelBytes = kFp8PanelBytes;
  // As WholePanels', with the scales of outputs l / 4 and 8 more.
  struct Two {
    uint2 bytes[2];
    float scales[2];
    __device__ uint4 Widened(int i) const { return Fp8Product::Widened(bytes[i], scales); }
  };
  __device__ static Two Load(SharedPtr<std::byte> from, int step) {
    const int lane = threadIdx.x % kWarp;
    const SharedPtr<float> scales =
        SharedCast<float>(from + (kFp8NumberBytes - lane * kLaneBytes + lane / 4 * 4));
    const SharedPtr<std::byte> bytes = from + step * kFp8StepPanelBytes;
    return {{SharedCast<uint2>(bytes)[0], SharedCast<uint2>(bytes + kFp8StepPanelBytes)[0]},
            {scales[0], scales[8]}};
  }
  __device__ static void Multiply(float (&d)[4], const uint4& a, const uint32_t (&b)[2]) {
    Bf16Product::Multiply(d, a, b);
  }

 private:
  __device__ static uint4 Widened(const uint2& bytes, const float (&scales)[2]) {
    return make_uint4(Scaled(bytes.x << 8, scales[0]), Scaled(bytes.y << 8, scales[1]),
                      Scaled(bytes.x, scales[0]), Scaled(bytes.y, scales[1]));
  }
  __device__ static uint32_t Scaled(uint32_t bytes, float scale) {
    const uint32_t pair = PairOfE4m3Numbers(bytes);
    return PackBf16(MultiplyUnflushed(FirstOf(pair), scale),
                    MultiplyUnflushed(SecondOf(pair), scale));
  }
};

inline constexpr int kMaxStages = 32;
inline constexpr int kBarrierBytes = 2 * kMaxStages * 8;

struct TensorLaunch {
  PackedLinear layer;
  TensorInputs inputs;
  const float* bias;     // [N], or null
  void* output;          // [R, N]; of a gated layer [R, N / 2]
  int64_t num_rows;      // R
  float4* segment_sums;  // As SegmentSumsAt has them, or SegmentSums; where there are segments
  RingShape ring;        // of few and many rows
  int row_chunks;        // of so many rows as the ring has, or a block of warpgroups
  int pass_panels;       // that a block of few rows multiplies at once
  // LinearArgs, and LinearSpec. Here nothing else moves (README.md).
  bool adds_to_output;
  bool gated;
  std::optional<ActivationFunction> activation;
};

TANDEM_ANYWHERE inline int64_t NumPanels(const PackedLinear& layer) {
  return (layer.out_features + kPanelOutputs - 1) / kPanelOutputs;
}

// Blocks of inputs of a segment, or all.
struct BlockRange {
  int begin;
  int end;
};
__device__ __forceinline__ BlockRange BlocksOf(const PackedLinear& layer, int segment) {
  if (!layer.segmented) return {0, static_cast<int>(layer.num_chunks)};
  const int inputs = BlockInputs(layer.weight_type);
  static_assert(kLinearSegmentMultiple % BlockInputs(WeightType::kInt8) == 0);
  const int64_t begin = LinearSegmentBegin(layer.in_features, segment) / inputs;
  const int64_t end = segment + 1 == kNumLinearSegments
                          ? layer.num_chunks
                          : LinearSegmentBegin(layer.in_features, segment + 1) / inputs;
  return {static_cast<int>(begin), static_cast<int>(end)};
}

// The ring as one of its threads sees it, stage after stage. A stage has panels, then rows.
class Ring {
 public:
  // `at`: where the first stage begins, behind the barriers.
  __device__ explicit Ring(const RingShape& shape, int at = kBarrierBytes)
      : shape_(shape),
        stage_bytes_(shape.stage_bytes()),
        rows_at_(shape.panels * shape.panel_bytes),
        memory_(SharedMemory() + at),
        full_(SharedCast<uint64_t>(SharedMemory())),
        left_(shape.stages) {}

  // By all threads, before anything else: how many arrive at a stage that they fill.
  __device__ void Init(int arrivals) {
    const int stage = threadIdx.x;
    if (stage < shape_.stages) {
      InitPhases(full_ + stage, arrivals);
      InitPhases(full_ + kMaxStages + stage, kWarps);
    }
    __syncthreads();
  }

  __device__ SharedPtr<std::byte> panels() const { return memory_; }
  __device__ SharedPtr<std::byte> rows() const { return memory_ + rows_at_; }
  __device__ SharedPtr<uint64_t> full() const { return full_; }

  __device__ void WaitUntilFree() const { WaitForPhase(full_ + kMaxStages, !odd_); }
  __device__ void WaitUntilFull() const { WaitForPhase(full_, odd_); }
  // By a warp that multiplies: this stage, or the one whose full() that was.
  __device__ void Leave() const { Leave(full_); }
  __device__ static void Leave(SharedPtr<uint64_t> full) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) Arrive(full + kMaxStages);
  }
  __device__ void Next() {
    memory_ = memory_ + stage_bytes_;
    full_ = full_ + 1;
    if (--left_ > 0) return;
    left_ = shape_.stages;
    memory_ = memory_ + -left_ * stage_bytes_;
    full_ = full_ + -left_;
    odd_ = !odd_;
  }

 private:
  const RingShape& shape_;
  const int stage_bytes_;
  const int rows_at_;
  SharedPtr<std::byte> memory_;  // of the stage
  SharedPtr<uint64_t> full_;     // Its barriers: this, and that for being free.
  int left_;                     // stages to the end of the ring
  bool odd_ = false;
};

// Pieces of 16 bytes of a row lie in other places from row to row, so that eight rows' pieces of
// one step are in different banks.
__device__ __forceinline__ int RowPieceAt(int row, int piece) {
  return row * kInputBlockBytes + (piece ^ (row % 8)) * kChunkBytes;
}

// What a block multiplies at once: panels by rows over a segment's inputs.
struct Pass {
  int segment;
  int first_panel;
  int num_panels;
  int64_t first_row;
  int num_rows;
  BlockRange blocks;
};

// By a warp: panels [begin, begin + count) of the pass. It arrives.
template <typename Product>
__device__ __forceinline__ void CopyPanels(const TensorLaunch& launch, const Pass& pass, int begin,
                                           int count, int block, const Ring& ring) {
  const PackedLinear& layer = launch.layer;
  const int left = pass.num_panels - begin;
  const int panel_bytes = Product::PanelBytes(launch.ring);
  const std::byte* const from =
      layer.panels + (int64_t{block} * NumPanels(layer) + pass.first_panel + begin) * panel_bytes;
  CopyByWarp(ring.panels() + begin * panel_bytes, from,
             (left < 0 ? 0 : Least(count, left)) * panel_bytes, ring.full());
}

// Copies kRows rows of a pass with kThreads threads, of which this is the `thread`-th: each some
// rows' pieces of one place. Rows that are none, and inputs behind the last one, are zeros.
template <int kRows, int kThreads>
class RowCopier {
 public:
  __device__ RowCopier(const TensorLaunch& launch, const Pass& pass, int thread)
      : row_bytes_(launch.inputs.row_bytes),
        from_(launch.inputs.rows + (pass.first_row + thread / kRowPieces) * row_bytes_),
        first_row_(thread / kRowPieces),
        rows_left_(pass.num_rows - first_row_),
        piece_(thread % kRowPieces),
        to_(RowPieceAt(first_row_, piece_)) {}

  // It arrives once they are there.
  __device__ void Copy(int block, const Ring& ring) const {
    Begin(block, ring);
    ArriveBehindCopies(ring.full());
  }
  __device__ void Begin(int block, const Ring& ring) const {
    const int64_t at = int64_t{block} * kInputBlockBytes + piece_ * kChunkBytes;
    const std::byte* from = from_ + at;
    const int left = at < row_bytes_ ? rows_left_ : 0;
    const SharedPtr<std::byte> to = ring.rows() + to_;
#pragma unroll
    for (int i = 0; i < kRows / kStride; ++i) {
      const bool there = i * kStride < left;
      CopyAsync16(to + i * kStride * kInputBlockBytes, there ? from : from_, there);
      from += kStride * row_bytes_;
    }
  }

 private:
  static constexpr int kStride = kThreads / kRowPieces;     // rows
  static_assert(kRows % kStride == 0 && kStride % 8 == 0);  // As RowPieceAt wants it.

  const int64_t row_bytes_;
  const std::byte* const from_;  // of the first row
  const int first_row_;
  const int rows_left_;
  const int piece_;
  const int to_;
};

// Where a lane finds what it gives products, in any stage.
struct LanePlaces {
  int weights;  // of panel 0, step 0
  int rows[2];  // of row 0, steps 0 and 2, each with the step behind it

  __device__ LanePlaces(int panel_at, int lane_bytes, int row) {
    const int lane = threadIdx.x % kWarp;
    weights = panel_at + lane * lane_bytes;
    for (int half = 0; half < 2; ++half) {
      rows[half] = RowPieceAt(row + lane % 8, half * 4 + lane / 8);
    }
  }
};

// The rows' part of two products of a half of a stage, of 8 rows.
__device__ __forceinline__ void LoadRows(SharedPtr<std::byte> from, uint32_t (&two)[2][2]) {
  uint32_t words[4];
  LoadMatrices(words, from);
  two[0][0] = words[0];
  two[0][1] = words[1];
  two[1][0] = words[2];
  two[1][1] = words[3];
}

__device__ __forceinline__ float ScaleOf(const TensorLaunch& launch, int64_t row, int segment) {
  return launch.inputs.row_scales[row * kNumLinearSegments + segment];
}

// What a sum becomes: the `at`-th packed output, with the `n`-th bias.
__device__ __forceinline__ float OutputOf(const TensorLaunch& launch, float sum, int64_t at,
                                          int64_t n) {
  if (launch.layer.scales != nullptr) sum = sum * launch.layer.scales[at];
  if (launch.bias != nullptr) sum = sum + launch.bias[n];
  return sum;
}

__device__ __forceinline__ float Activated(const TensorLaunch& launch, float output) {
  return *launch.activation == ActivationFunction::kSilu ? Silu(output) : GeluTanh(output);
}

// A lane's sums of one product are outputs l / 4 and 8 more of rows 2 · (l % 4) and the next, as
// the rows are counted from `first_row` on: of a gated layer gates and their ups.
__device__ __forceinline__ void StoreRows(const TensorLaunch& launch, int64_t first_row,
                                          int64_t panel, const float (&sums)[4]) {
  const PackedLinear& layer = launch.layer;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = first_row + lane % 4 * 2;
  const int64_t rows_left = launch.num_rows - row;
  if (launch.gated) {
    const int64_t columns = layer.out_features / 2;
    const int64_t column = panel * kPanelColumns + lane / 4;
    if (column >= columns) return;
    const int64_t at = panel * kPanelOutputs + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r >= rows_left) break;
      const float gate = OutputOf(launch, sums[r], at, column);
      const float up = OutputOf(launch, sums[2 + r], at + kPanelColumns, columns + column);
      Store(layer.output_dtype, launch.output, (row + r) * columns + column,
            Activated(launch, gate) * up);
    }
    return;
  }
  // All at once, as a load does not go before a store.
  float before[4] = {};
  if (launch.adds_to_output) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t n = panel * kPanelOutputs + lane / 4 + i / 2 * 8;
      if (n >= layer.out_features || i % 2 >= rows_left) continue;
      before[i] = static_cast<const float*>(launch.output)[(row + i % 2) * layer.out_features + n];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int64_t n = panel * kPanelOutputs + lane / 4 + i * 4;
    if (n >= layer.out_features) continue;
    const int64_t at = row * layer.out_features + n;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r >= rows_left) break;
      float output = OutputOf(launch, sums[i + r], n, n);
      if (launch.activation) output = Activated(launch, output);
      if (launch.adds_to_output) output = before[i + r] + output;
      Store(layer.output_dtype, launch.output, at + r * layer.out_features, output);
    }
  }
}

// Sums of segments are kept as lanes have them: [segment, row chunk, panel, product, lane].
__device__ __forceinline__ int64_t SegmentSumsAt(const TensorLaunch& launch, int segment,
                                                 int64_t chunk, int64_t panel, int product) {
  const int products = launch.ring.rows / kProductRows;
  return (((segment * launch.row_chunks + chunk) * NumPanels(launch.layer) + panel) * products +
          product) *
             kWarp +
         static_cast<int>(threadIdx.x % kWarp);
}

// By a warp: what it has of a panel and of 8 rows of a pass, the `product`-th.
template <typename Product>
__device__ __forceinline__ void StoreProduct(const TensorLaunch& launch, const Pass& pass,
                                             int64_t panel, int product,
                                             const typename Product::Sum (&sums)[4]) {
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i] = static_cast<float>(sums[i]);
    if constexpr (Product::kScaled) {
      const int row = product * kProductRows + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      values[i] = row < pass.num_rows
                      ? values[i] * ScaleOf(launch, pass.first_row + row, pass.segment)
                      : 0.0f;
    }
  }
  if (launch.layer.segmented) {
    launch.segment_sums[SegmentSumsAt(launch, pass.segment, pass.first_row / launch.ring.rows,
                                      panel, product)] =
        make_float4(values[0], values[1], values[2], values[3]);
    return;
  }
  StoreRows(launch, pass.first_row + product * kProductRows, panel, values);
}

// ---- many outputs of a warp, through shared memory, so that a row's are stored together ----

// Numbers from row to row: lanes write to different banks.
template <int kOutputs>
inline constexpr int kStagedRow = kOutputs + 4;

// What a warp has of its `panel`-th panel and of the `tile`-th 8 rows.
template <int kOutputs, typename Sum>
__device__ __forceinline__ void StageProduct(SharedPtr<float> staged, int panel, int tile,
                                             const Sum (&sums)[4]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    staged[(tile * kProductRows + lane % 4 * 2 + i % 2) * kStagedRow<kOutputs> +
           panel * kPanelOutputs + lane / 4 + i / 2 * 8] = static_cast<float>(sums[i]);
  }
}

// By a warp: kRows rows, from `first_row` on, of kOutputs outputs, the `first_output`-th that is
// packed and so on; two a lane, of a gated layer a gate and its up. kScalesRows: sums are still to
// be multiplied with the scales of their rows.
template <typename Product, int kOutputs, int kRows, bool kScalesRows = Product::kScaled>
__device__ __forceinline__ void StoreStaged(const TensorLaunch& launch, SharedPtr<float> staged,
                                            int64_t first_row, int64_t first_output) {
  constexpr int kRowLanes = kOutputs / 2;  // of a row
  constexpr int kStride = kWarp / kRowLanes;
  const PackedLinear& layer = launch.layer;
  const int lane = threadIdx.x % kRowLanes;
  const int lane_row = static_cast<int>(threadIdx.x) % kWarp / kRowLanes;
  const int64_t columns = launch.gated ? layer.out_features / 2 : layer.out_features;
  // Where both are among what is staged, and in the layer.
  int at[2] = {lane, lane + kRowLanes};
  int64_t n[2] = {first_output + lane, first_output + lane + kRowLanes};
  if (launch.gated) {
    at[0] = lane / kPanelColumns * kPanelOutputs + lane % kPanelColumns;
    at[1] = at[0] + kPanelColumns;
    n[0] = first_output / 2 + lane;
    n[1] = n[0] + columns;
  }
  const bool there[2] = {n[0] < columns, launch.gated ? n[0] < columns : n[1] < columns};
  float scale[2] = {1.0f, 1.0f};
  float bias[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (Product::kScaled && there[i]) scale[i] = layer.scales[first_output + at[i]];
    if (launch.bias != nullptr && there[i]) bias[i] = launch.bias[n[i]];
  }
  const auto output_of = [&](int row, int i) {
    float sum = staged[row * kStagedRow<kOutputs> + at[i]];
    if constexpr (kScalesRows) sum = sum * ScaleOf(launch, first_row + row, 0);
    if constexpr (Product::kScaled) sum = sum * scale[i];
    if (launch.bias != nullptr) sum = sum + bias[i];
    return sum;
  };
  const int64_t rows_left = launch.num_rows - first_row;
  if (launch.adds_to_output) {
    constexpr int kAtOnce = 8;  // As a load does not go before a store.
    float* const outputs = static_cast<float*>(launch.output) + first_row * columns;
#pragma unroll 1
    for (int begin = lane_row; begin < kRows; begin += kAtOnce * kStride) {
      float before[kAtOnce][2] = {};
#pragma unroll
      for (int j = 0; j < kAtOnce * 2; ++j) {
        const int row = begin + j / 2 * kStride;
        if (row >= rows_left || !there[j % 2]) continue;
        before[j / 2][j % 2] = outputs[row * columns + n[j % 2]];
      }
#pragma unroll
      for (int j = 0; j < kAtOnce * 2; ++j) {
        const int row = begin + j / 2 * kStride;
        if (row >= rows_left || !there[j % 2]) continue;
        outputs[row * columns + n[j % 2]] = before[j / 2][j % 2] + output_of(row, j % 2);
      }
    }
    return;
  }
#pragma unroll 1
  for (int row = lane_row; row < kRows && row < rows_left; row += kStride) {
    const int64_t to = (first_row + row) * columns;
    if (launch.gated) {
      if (!there[0]) continue;
      const float gate = output_of(row, 0);
      Store(layer.output_dtype, launch.output, to + n[0],
            Activated(launch, gate) * output_of(row, 1));
      continue;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!there[i]) continue;
      float output = output_of(row, i);
      if (launch.activation) output = Activated(launch, output);
      Store(layer.output_dtype, launch.output, to + n[i], output);
    }
  }
}

// By a warp: kTiles times 8 rows of kPanels panels, sums_of(panel, tile) of each, so many tiles at
// once through `staged` as that has room for.
template <typename Product, int kPanels, int kTiles, int kTilesAtOnce,
          bool kScalesRows = Product::kScaled, typename SumsOf>
__device__ __forceinline__ void StoreThroughShared(const TensorLaunch& launch,
                                                   SharedPtr<float> staged, int64_t first_row,
                                                   int64_t first_output, const SumsOf& sums_of) {
  constexpr int kOutputs = kPanels * kPanelOutputs;
#pragma unroll
  for (int first = 0; first < kTiles; first += kTilesAtOnce) {
    __syncwarp();  // All have read what was there.
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int tile = 0; tile < kTilesAtOnce; ++tile) {
        StageProduct<kOutputs>(staged, panel, tile, sums_of(panel, first + tile));
      }
    }
    __syncwarp();
    StoreStaged<Product, kOutputs, kTilesAtOnce * kProductRows, kScalesRows>(
        launch, staged, first_row + first * kProductRows, first_output);
  }
}
// Numbers that it stages.
template <int kPanels, int kTilesAtOnce>
inline constexpr int kStagedNumbers =
    kTilesAtOnce* kProductRows* kStagedRow<kPanels * kPanelOutputs>;

// ---- launches, which fill in the rest of `launch` ----

// What the layer has of a panel in a block of inputs.
inline int PanelBytesOf(const PackedLinear& layer) {
  if (layer.weight_type == WeightType::kInt4) return Int4PanelBytes(layer.group);
  return layer.weight_type == WeightType::kFp8 ? kFp8PanelBytes : kBlockPanelBytes;
}

inline constexpr int kTileRows = 128;  // of a block of many
cudaError_t LaunchFewRows(const ProcessorLimits& limits, cudaStream_t stream, TensorLaunch* launch);
cudaError_t LaunchManyRows(const ProcessorLimits& limits, cudaStream_t stream,
                           TensorLaunch* launch);
// With the same bits, of all but 4 bits, where limits.has_warpgroup_products says so; segments'
// sums become outputs there. It wants WgmmaSumsBytes at `segment_sums`.
cudaError_t LaunchWgmmaRows(const ProcessorLimits& limits, cudaStream_t stream,
                            TensorLaunch* launch);
size_t WgmmaSumsBytes(const PackedLinear& layer, int64_t num_rows, const ProcessorLimits& limits);

inline size_t SharedBytes(const RingShape& ring) {
  return static_cast<size_t>(kBarrierBytes) +
         static_cast<size_t>(ring.stages) * static_cast<size_t>(ring.stage_bytes());
}
// As many stages as there is room for.
inline void SetStages(const ProcessorLimits& limits, RingShape* ring) {
  constexpr int kReservedBytes = 1024;  // A block has them besides.
  const int room = static_cast<int>(limits.max_shared_bytes) - kReservedBytes - kBarrierBytes;
  ring->stages = std::min(kMaxStages, room / ring->stage_bytes());
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_TENSOR_RING_H_
