// Linear layers on the tensor cores: weights of bf16, summed as these do it, and of 8 bits, summed
// exactly. An output is a chain of products of one instruction, inputs ascending by steps, so that
// its bits are the same whatever the number of rows and whichever kernel computes it.
//
//   few rows   What there is to read, panels of every segment, is cut into equal parts, one a
//              processor. One warp copies weights, another rows, as fast as memory gives them;
//              eight multiply.
//   more rows  A block has 256 outputs of 128 rows; each of eight warps copies a part of both, and
//              multiplies 64 outputs with 64 rows.
//
// What is copied goes through a ring of stages, a block of inputs each. A stage is full once its
// copies are there, and free once the warps that multiply have left it.

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
constexpr int kWarps = 8;     // that multiply
constexpr int kRowWarps = 2;  // that copy rows of few; one more copies weights
constexpr int kFewThreads = (kWarps + kRowWarps + 1) * kWarp;
constexpr int kTileThreads = kWarps * kWarp;
constexpr int kProductRows = 8;  // of one product
constexpr int kRowPieces =
    kInputBlockBytes / kChunkBytes;  // of 16 bytes, that a stage has of a row

struct Bf16Product {
  using Sum = float;
  static constexpr bool kScaled = false;
  __device__ static void Multiply(float (&d)[4], const uint4& a, const uint32_t (&b)[2]) {
    const uint32_t of_a[4] = {a.x, a.y, a.z, a.w};
    MmaBf16(d, of_a, b);
  }
};
struct Int8Product {
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
  int stages = 0;
  TANDEM_ANYWHERE int stage_bytes() const {
    return panels * kBlockPanelBytes + rows * kInputBlockBytes;
  }
};
constexpr int kMaxStages = 32;
constexpr int kBarrierBytes = 2 * kMaxStages * 8;

struct TensorLaunch {
  PackedLinear layer;
  TensorInputs inputs;
  const float* bias;     // [N], or null
  void* output;          // [R, N]
  int64_t num_rows;      // R
  float4* segment_sums;  // As SegmentSumsAt has them; where there are segments
  RingShape ring;
  int row_chunks;   // of so many rows as the ring has
  int pass_panels;  // that a block of few rows multiplies at once
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
  __device__ explicit Ring(const RingShape& shape)
      : shape_(shape),
        stage_bytes_(shape.stage_bytes()),
        rows_at_(shape.panels * kBlockPanelBytes),
        memory_(SharedMemory() + kBarrierBytes),
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
  // By a warp that multiplies.
  __device__ void Leave() const {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) Arrive(full_ + kMaxStages);
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
__device__ __forceinline__ void CopyPanels(const TensorLaunch& launch, const Pass& pass, int begin,
                                           int count, int block, const Ring& ring) {
  const PackedLinear& layer = launch.layer;
  const int left = pass.num_panels - begin;
  const std::byte* const from =
      layer.panels +
      (int64_t{block} * NumPanels(layer) + pass.first_panel + begin) * kBlockPanelBytes;
  CopyByWarp(ring.panels() + begin * kBlockPanelBytes, from,
             (left < 0 ? 0 : Least(count, left)) * kBlockPanelBytes, ring.full());
}

// Copies kRows rows of a pass with kThreads threads, of which this is the `thread`-th: each some
// rows' pieces of one place, and it arrives. Rows that are none, and inputs behind the last one,
// are zeros.
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

  __device__ void Copy(int block, const Ring& ring) const {
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
    ArriveBehindCopies(ring.full());
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

  __device__ LanePlaces(int panel, int row) {
    const int lane = threadIdx.x % kWarp;
    weights = panel * kBlockPanelBytes + lane * kChunkBytes;
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
__device__ __forceinline__ uint4 LoadWeights(SharedPtr<std::byte> from) {
  return SharedCast<uint4>(from)[0];
}

__device__ __forceinline__ float ScaleOf(const TensorLaunch& launch, int64_t row, int segment) {
  return launch.inputs.row_scales[row * kNumLinearSegments + segment];
}

// A lane's sums of one product are outputs l / 4 and 8 more of rows 2 · (l % 4) and the next, as
// the rows are counted from `first_row` on.
__device__ __forceinline__ void StoreRows(const TensorLaunch& launch, int64_t first_row,
                                          int64_t panel, const float (&sums)[4]) {
  const PackedLinear& layer = launch.layer;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = first_row + lane % 4 * 2;
  const int64_t rows_left = launch.num_rows - row;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int64_t n = panel * kPanelOutputs + lane / 4 + i * 4;
    if (n >= layer.out_features) continue;
    const float scale = layer.scales == nullptr ? 1.0f : layer.scales[n];
    const float bias = launch.bias == nullptr ? 0.0f : launch.bias[n];
    const int64_t at = row * layer.out_features + n;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r >= rows_left) break;
      float sum = sums[i + r];
      if (layer.scales != nullptr) sum = sum * scale;
      if (launch.bias != nullptr) sum = sum + bias;
      Store(layer.output_dtype, launch.output, at + r * layer.out_features, sum);
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

// ---- few rows ----

// This block's part of all (row chunk, segment, panel), panels fastest.
class Passes {
 public:
  __device__ Passes(const TensorLaunch& launch, int chunk_rows)
      : launch_(launch),
        chunk_rows_(chunk_rows),
        num_panels_(NumPanels(launch.layer)),
        num_segments_(launch.layer.segmented ? kNumLinearSegments : 1) {
    const int64_t all = num_panels_ * num_segments_ * launch.row_chunks;
    at_ = all * blockIdx.x / gridDim.x;
    end_ = all * (blockIdx.x + 1) / gridDim.x;
  }
  __device__ bool Take(Pass* pass) {
    if (at_ >= end_) return false;
    const int64_t panel = at_ % num_panels_;
    const int64_t segments = at_ / num_panels_;
    int64_t count = end_ - at_;
    if (count > num_panels_ - panel) count = num_panels_ - panel;
    if (count > launch_.pass_panels) count = launch_.pass_panels;
    const auto segment = static_cast<int>(segments % num_segments_);
    const int64_t first_row = segments / num_segments_ * chunk_rows_;
    const int64_t rows = launch_.num_rows - first_row;
    *pass = {.segment = segment,
             .first_panel = static_cast<int>(panel),
             .num_panels = static_cast<int>(count),
             .first_row = first_row,
             .num_rows = static_cast<int>(rows < chunk_rows_ ? rows : chunk_rows_),
             .blocks = BlocksOf(launch_.layer, segment)};
    at_ += count;
    return true;
  }

 private:
  const TensorLaunch& launch_;
  const int chunk_rows_;
  const int64_t num_panels_;
  const int64_t num_segments_;
  int64_t at_;
  int64_t end_;
};

constexpr int kPassPanels = 16;
constexpr int kWarpPanels = kPassPanels / kWarps;

// What a warp of few rows multiplies at once: two steps, a half of a stage.
template <typename Product, int kTiles>
struct TwoSteps {
  uint4 weights[kWarpPanels][2];
  uint32_t rows[kTiles][2][2];

  // So many panels of the warp are there.
  __device__ void Load(const Ring& ring, const LanePlaces& places, int panels, int half) {
    const SharedPtr<std::byte> from = ring.panels() + places.weights + half * 2 * kStepPanelBytes;
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
      if (p >= panels) break;
      weights[p][0] = LoadWeights(from + p * kWarps * kBlockPanelBytes);
      weights[p][1] = LoadWeights(from + p * kWarps * kBlockPanelBytes + kStepPanelBytes);
    }
    const SharedPtr<std::byte> from_rows = ring.rows() + places.rows[half];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      LoadRows(from_rows + tile * kProductRows * kInputBlockBytes, rows[tile]);
    }
  }
  __device__ void Multiply(int panels,
                           typename Product::Sum (&sums)[kWarpPanels][kTiles][4]) const {
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
      if (p >= panels) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          Product::Multiply(sums[p][tile], weights[p][i], rows[tile][i]);
        }
      }
    }
  }
};

// kTiles products of 8 rows side by side. Weights do not depend on the launch before: as many as
// the ring takes are on their way before that has ended.
template <typename Product, int kTiles>
__global__ void TANDEM_THREADS(kFewThreads, 1) FewRowsKernel(TensorLaunch launch) {
  constexpr int kRows = kTiles * kProductRows;
  const int warp = threadIdx.x / kWarp;
  Ring ring(launch.ring);
  Passes passes(launch, kRows);
  Pass pass;
  ring.Init(WarpCopyArrivals() + kRowWarps * kWarp);
  LetNextLaunchBegin();

  if (warp == kWarps) {
    while (passes.Take(&pass)) {
      for (int block = pass.blocks.begin; block < pass.blocks.end; ++block) {
        ring.WaitUntilFree();
        CopyPanels(launch, pass, 0, kPassPanels, block, ring);
        ring.Next();
      }
    }
    WaitForLaunchBefore();
    return;
  }
  WaitForLaunchBefore();
  if (warp > kWarps) {
    while (passes.Take(&pass)) {
      const RowCopier<kRows, kRowWarps * kWarp> rows(launch, pass,
                                                     threadIdx.x - (kWarps + 1) * kWarp);
      for (int block = pass.blocks.begin; block < pass.blocks.end; ++block) {
        ring.WaitUntilFree();
        rows.Copy(block, ring);
        ring.Next();
      }
    }
    return;
  }

  const LanePlaces places(warp, 0);
  while (passes.Take(&pass)) {
    const int panels = (pass.num_panels - warp + kWarps - 1) / kWarps;
    typename Product::Sum sums[kWarpPanels][kTiles][4] = {};
    // Chains of few products wait for each other: what is multiplied next is loaded before.
    constexpr bool kAhead = kTiles <= 2;
    TwoSteps<Product, kTiles> now;
    TwoSteps<Product, kTiles> next;
    static_assert(kBlockSteps == 4);
    if (kAhead && pass.blocks.begin < pass.blocks.end) {
      ring.WaitUntilFull();
      now.Load(ring, places, panels, 0);
    }
    for (int block = pass.blocks.begin; block < pass.blocks.end; ++block) {
      if constexpr (kAhead) {
        next.Load(ring, places, panels, 1);
        ring.Leave();
        ring.Next();
        now.Multiply(panels, sums);
        if (block + 1 < pass.blocks.end) {
          ring.WaitUntilFull();
          now.Load(ring, places, panels, 0);
        }
        next.Multiply(panels, sums);
      } else {
        ring.WaitUntilFull();
        now.Load(ring, places, panels, 0);
        now.Multiply(panels, sums);
        now.Load(ring, places, panels, 1);
        ring.Leave();
        ring.Next();
        now.Multiply(panels, sums);
      }
    }
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
      if (p >= panels) break;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        StoreProduct<Product>(launch, pass, pass.first_panel + warp + p * kWarps, tile,
                              sums[p][tile]);
      }
    }
  }
}

// ---- more rows ----

constexpr int kTilePanels = 16;
constexpr int kTileRows = 128;
constexpr int kTileWarpPanels = 4;  // 64 outputs
constexpr int kTileWarpTiles = 8;   // 64 rows

// A warp's sums on their way out: rows so far apart that lanes write to different banks.
constexpr int kTileWarpRows = kTileWarpTiles * kProductRows;
constexpr int kTileWarpOutputs = kTileWarpPanels * kPanelOutputs;
constexpr int kStagedRow = kTileWarpOutputs + 4;

// By a warp: its rows, from `first_row` on, of its outputs, from `first_output` on; two a lane.
template <typename Product>
__device__ __forceinline__ void StoreStaged(const TensorLaunch& launch, SharedPtr<float> staged,
                                            int64_t first_row, int64_t first_output) {
  static_assert(kTileWarpOutputs == 2 * kWarp);
  const PackedLinear& layer = launch.layer;
  const int lane = threadIdx.x % kWarp;
  const int64_t n = first_output + lane;
  const bool there[2] = {n < layer.out_features, n + kWarp < layer.out_features};
  float scale[2] = {1.0f, 1.0f};
  float bias[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (Product::kScaled && there[i]) scale[i] = layer.scales[n + i * kWarp];
    if (launch.bias != nullptr && there[i]) bias[i] = launch.bias[n + i * kWarp];
  }
  const int64_t rows_left = launch.num_rows - first_row;
#pragma unroll 1
  for (int row = 0; row < kTileWarpRows && row < rows_left; ++row) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = staged[row * kStagedRow + i * kWarp + lane];
      if constexpr (Product::kScaled) sum = sum * ScaleOf(launch, first_row + row, 0) * scale[i];
      if (launch.bias != nullptr) sum = sum + bias[i];
      if (!there[i]) continue;
      Store(layer.output_dtype, launch.output,
            (first_row + row) * layer.out_features + n + i * kWarp, sum);
    }
  }
}

// One block a (tile of outputs, tile of rows, segment); warp w has panels w % 4, rows w / 4.
template <typename Product>
__global__ void TANDEM_THREADS(kTileThreads, 1) TileKernel(TensorLaunch launch) {
  const PackedLinear& layer = launch.layer;
  const int warp = threadIdx.x / kWarp;
  const int64_t output_tiles = (NumPanels(layer) + kTilePanels - 1) / kTilePanels;
  const int64_t row_tiles = (launch.num_rows + kTileRows - 1) / kTileRows;
  const int64_t first_panel = blockIdx.x / row_tiles % output_tiles * kTilePanels;
  const int64_t first_row = blockIdx.x % row_tiles * kTileRows;
  const auto segment = static_cast<int>(blockIdx.x / (output_tiles * row_tiles));
  const int64_t panels_left = NumPanels(layer) - first_panel;
  const int64_t rows_left = launch.num_rows - first_row;
  const Pass pass = {
      .segment = segment,
      .first_panel = static_cast<int>(first_panel),
      .num_panels = static_cast<int>(panels_left < kTilePanels ? panels_left : kTilePanels),
      .first_row = first_row,
      .num_rows = static_cast<int>(rows_left < kTileRows ? rows_left : kTileRows),
      .blocks = BlocksOf(layer, segment)};
  Ring ring(launch.ring);
  ring.Init(kWarps * WarpCopyArrivals() + kTileThreads);
  BeginLaunch();

  // So that a stage is filled whose last reader has gone on to another since.
  const int ahead = launch.ring.stages - 2;
  const RowCopier<kTileRows, kTileThreads> rows(launch, pass, threadIdx.x);
  Ring filling = ring;
  int filled = pass.blocks.begin;
  const auto fill = [&] {
    if (filled >= pass.blocks.end) return;
    filling.WaitUntilFree();
    CopyPanels(launch, pass, warp * (kTilePanels / kWarps), kTilePanels / kWarps, filled, filling);
    rows.Copy(filled, filling);
    filling.Next();
    ++filled;
  };
  for (int stage = 0; stage < ahead; ++stage) fill();

  const int warp_panel = warp % 4 * kTileWarpPanels;
  const int warp_row = warp / 4 * kTileWarpTiles * kProductRows;
  const int panels_of_warp = pass.num_panels - warp_panel;
  const LanePlaces places(warp_panel, warp_row);
  typename Product::Sum sums[kTileWarpPanels][kTileWarpTiles][4] = {};
  for (int block = pass.blocks.begin; block < pass.blocks.end; ++block) {
    fill();
    ring.WaitUntilFull();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const SharedPtr<std::byte> from = ring.panels() + places.weights + half * 2 * kStepPanelBytes;
      uint4 w[kTileWarpPanels][2] = {};
#pragma unroll
      for (int p = 0; p < kTileWarpPanels; ++p) {
        if (p >= panels_of_warp) break;
        w[p][0] = LoadWeights(from + p * kBlockPanelBytes);
        w[p][1] = LoadWeights(from + p * kBlockPanelBytes + kStepPanelBytes);
      }
      const SharedPtr<std::byte> from_rows = ring.rows() + places.rows[half];
#pragma unroll
      for (int tile = 0; tile < kTileWarpTiles; ++tile) {
        uint32_t x[2][2];
        LoadRows(from_rows + tile * kProductRows * kInputBlockBytes, x);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int p = 0; p < kTileWarpPanels; ++p) {
            Product::Multiply(sums[p][tile], w[p][i], x[i]);
          }
        }
      }
    }
    ring.Leave();
    ring.Next();
  }
  if (layer.segmented) {
#pragma unroll
    for (int p = 0; p < kTileWarpPanels; ++p) {
      if (p >= panels_of_warp) break;
#pragma unroll
      for (int tile = 0; tile < kTileWarpTiles; ++tile) {
        StoreProduct<Product>(launch, pass, first_panel + warp_panel + p,
                              warp_row / kProductRows + tile, sums[p][tile]);
      }
    }
    return;
  }
  // Through shared memory, so that a row's outputs are stored together, and by little code.
  __syncthreads();  // All have left the ring.
  const SharedPtr<float> staged =
      SharedCast<float>(SharedMemory() + kBarrierBytes) + warp * (kStagedRow * kTileWarpRows);
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int p = 0; p < kTileWarpPanels; ++p) {
#pragma unroll
    for (int tile = 0; tile < kTileWarpTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        staged[(tile * kProductRows + lane % 4 * 2 + i % 2) * kStagedRow + p * kPanelOutputs +
               lane / 4 + i / 2 * 8] = static_cast<float>(sums[p][tile][i]);
      }
    }
  }
  __syncwarp();
  StoreStaged<Product>(launch, staged, first_row + warp_row,
                       (first_panel + warp_panel) * kPanelOutputs);
}

// ---- segments ----

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

// ---- launches ----

constexpr int kMaxFewRows = 256;
constexpr int kChunkRows = 64;        // of few rows, at most
constexpr int kReservedBytes = 1024;  // A block has them besides.

size_t SharedBytes(const RingShape& ring) {
  return static_cast<size_t>(kBarrierBytes) +
         static_cast<size_t>(ring.stages) * static_cast<size_t>(ring.stage_bytes());
}

void SetStages(const ProcessorLimits& limits, RingShape* ring) {
  const int room = static_cast<int>(limits.max_shared_bytes) - kReservedBytes - kBarrierBytes;
  ring->stages = std::min(kMaxStages, room / ring->stage_bytes());
}

// Both fill in the rest of `launch`.
template <typename Product>
cudaError_t LaunchFewRows(const ProcessorLimits& limits, cudaStream_t stream,
                          TensorLaunch* to_fill) {
  TensorLaunch& launch = *to_fill;
  const PackedLinear& layer = launch.layer;
  const int rows = static_cast<int>(std::min<int64_t>(launch.num_rows, kChunkRows));
  int tiles = 1;
  while (tiles * kProductRows < rows) tiles *= 2;
  launch.row_chunks =
      static_cast<int>(CeilDiv<int64_t>(launch.num_rows, int64_t{tiles} * kProductRows));
  const int64_t parts = CeilDiv<int64_t>(layer.out_features, kPanelOutputs) *
                        (layer.segmented ? kNumLinearSegments : 1) * launch.row_chunks;
  const int64_t blocks = std::min<int64_t>(parts, limits.num_processors);
  const int64_t of_block = CeilDiv<int64_t>(parts, blocks);
  launch.pass_panels =
      static_cast<int>(CeilDiv<int64_t>(of_block, CeilDiv<int64_t>(of_block, kPassPanels)));
  launch.ring = {.panels = launch.pass_panels, .rows = tiles * kProductRows};
  SetStages(limits, &launch.ring);
  const LaunchShape shape = {
      .blocks = blocks, .threads = kFewThreads, .shared_bytes = SharedBytes(launch.ring)};
  switch (tiles) {
    case 1:
      return Launch(FewRowsKernel<Product, 1>, shape, stream, launch);
    case 2:
      return Launch(FewRowsKernel<Product, 2>, shape, stream, launch);
    case 4:
      return Launch(FewRowsKernel<Product, 4>, shape, stream, launch);
    default:
      return Launch(FewRowsKernel<Product, 8>, shape, stream, launch);
  }
}

template <typename Product>
cudaError_t LaunchTiles(const ProcessorLimits& limits, cudaStream_t stream, TensorLaunch* to_fill) {
  TensorLaunch& launch = *to_fill;
  const PackedLinear& layer = launch.layer;
  launch.row_chunks = static_cast<int>(CeilDiv<int64_t>(launch.num_rows, kTileRows));
  launch.ring = {.panels = kTilePanels, .rows = kTileRows};
  SetStages(limits, &launch.ring);
  return Launch(TileKernel<Product>,
                {.blocks = CeilDiv<int64_t>(layer.out_features, kTilePanels * kPanelOutputs) *
                           launch.row_chunks * (layer.segmented ? kNumLinearSegments : 1),
                 .threads = kTileThreads,
                 .shared_bytes = SharedBytes(launch.ring)},
                stream, launch);
}

template <typename Product>
cudaError_t LaunchProduct(TensorLaunch launch, const ProcessorLimits& limits, cudaStream_t stream) {
  const auto launch_some =
      launch.num_rows <= kMaxFewRows ? LaunchFewRows<Product> : LaunchTiles<Product>;
  const cudaError_t error = launch_some(limits, stream, &launch);
  if (error != cudaSuccess || !launch.layer.segmented) return error;
  return SumProducts(launch, stream);
}

// ---- rows of whole pieces ----

constexpr int kElementThreads = 256;

struct PadLaunch {
  const Bfloat16* input;  // [R, K]
  Bfloat16* rows;         // [R, inputs of whole pieces], zeros at the end
  int64_t in_features;
  int64_t row_inputs;
  int64_t num_rows;
};

__global__ void TANDEM_THREADS(kElementThreads, 1) PadKernel(PadLaunch launch) {
  BeginLaunch();
  const int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  if (i >= launch.num_rows * launch.row_inputs) return;
  const int64_t k = i % launch.row_inputs;
  launch.rows[i] = k < launch.in_features
                       ? launch.input[i / launch.row_inputs * launch.in_features + k]
                       : Bfloat16{0};
}

constexpr int64_t kPieceInputs = kChunkBytes / static_cast<int64_t>(sizeof(Bfloat16));

// The bytes of a row of whole pieces.
int64_t PieceRowBytes(const PackedLinear& layer) {
  return CeilDiv<int64_t>(layer.in_features, kPieceInputs) * kChunkBytes;
}

}  // namespace

size_t TensorSumsBytes(const PackedLinear& layer, int64_t num_rows) {
  if (!layer.segmented) return 0;
  // In whole chunks of rows, and panels.
  return sizeof(float) * static_cast<size_t>(kNumLinearSegments) *
         RoundUp<size_t>(static_cast<size_t>(num_rows), kTileRows) *
         RoundUp<size_t>(static_cast<size_t>(layer.out_features), kPanelOutputs);
}

cudaError_t TensorLinear(const PackedLinear& layer, const HostLinearArgs& args,
                         const TensorInputs& inputs, void* segment_sums,
                         const ProcessorLimits& limits, cudaStream_t stream) {
  const TensorLaunch launch{.layer = layer,
                            .inputs = inputs,
                            .bias = args.bias,
                            .output = args.output,
                            .num_rows = args.num_rows,
                            .segment_sums = static_cast<float4*>(segment_sums),
                            .ring = {},
                            .row_chunks = 0,
                            .pass_panels = 0};
  return layer.weight_type == WeightType::kInt8
             ? LaunchProduct<Int8Product>(launch, limits, stream)
             : LaunchProduct<Bf16Product>(launch, limits, stream);
}

// Inputs may begin anywhere, so that padded rows have room in any case.
size_t Bf16TensorScratchBytes(const PackedLinear& layer, int64_t num_rows) {
  return TensorSumsBytes(layer, num_rows) + static_cast<size_t>(num_rows * PieceRowBytes(layer));
}

cudaError_t Bf16TensorLinear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                             const ProcessorLimits& limits, cudaStream_t stream) {
  TensorInputs inputs = {.rows = static_cast<const std::byte*>(args.input),
                         .row_bytes = PieceRowBytes(layer),
                         .row_scales = nullptr};
  const auto num_inputs = inputs.row_bytes / static_cast<int64_t>(sizeof(Bfloat16));
  if (layer.in_features != num_inputs ||
      reinterpret_cast<uintptr_t>(args.input) % kChunkBytes != 0) {
    std::byte* const rows =
        static_cast<std::byte*>(scratch) + TensorSumsBytes(layer, args.num_rows);
    const PadLaunch pad{.input = static_cast<const Bfloat16*>(args.input),
                        .rows = reinterpret_cast<Bfloat16*>(rows),
                        .in_features = layer.in_features,
                        .row_inputs = num_inputs,
                        .num_rows = args.num_rows};
    const cudaError_t error =
        Launch(PadKernel,
               {.blocks = CeilDiv<int64_t>(args.num_rows * num_inputs, kElementThreads),
                .threads = kElementThreads},
               stream, pad);
    if (error != cudaSuccess) return error;
    inputs.rows = rows;
  }
  return TensorLinear(layer, args, inputs, scratch, limits, stream);
}

}  // namespace tandem
