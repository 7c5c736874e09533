// A linear layer of few rows on the tensor cores. What there is to read, panels of every segment,
// is cut into equal parts, one a processor. One warp copies weights, others rows, as fast as memory
// gives them; eight multiply.

#include "kernels/cuda/tensor_ring.h"

namespace tandem {
namespace {

constexpr int kRowWarps = 2;  // that copy rows; one more copies weights
constexpr int kFewThreads = (kWarps + kRowWarps + 1) * kWarp;

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

constexpr int kChunkRows = 64;  // that a block has at most

template <typename Product>
cudaError_t LaunchTiles(int tiles, const LaunchShape& shape, cudaStream_t stream,
                        const TensorLaunch& launch) {
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

}  // namespace

cudaError_t LaunchFewRows(const ProcessorLimits& limits, cudaStream_t stream,
                          TensorLaunch* to_fill) {
  TensorLaunch& launch = *to_fill;
  const PackedLinear& layer = launch.layer;
  const int rows = static_cast<int>(std::min<int64_t>(launch.num_rows, kChunkRows));
  int tiles = 1;
  while (tiles * kProductRows < rows) tiles *= 2;
  launch.row_chunks =
      static_cast<int>(CeilDiv<int64_t>(launch.num_rows, int64_t{tiles} * kProductRows));
  const int64_t parts =
      NumPanels(layer) * (layer.segmented ? kNumLinearSegments : 1) * launch.row_chunks;
  const int64_t blocks = std::min<int64_t>(parts, limits.num_processors);
  const int64_t of_block = CeilDiv<int64_t>(parts, blocks);
  launch.pass_panels =
      static_cast<int>(CeilDiv<int64_t>(of_block, CeilDiv<int64_t>(of_block, kPassPanels)));
  launch.ring = {.panels = launch.pass_panels, .rows = tiles * kProductRows};
  SetStages(limits, &launch.ring);
  const LaunchShape shape = {
      .blocks = blocks, .threads = kFewThreads, .shared_bytes = SharedBytes(launch.ring)};
  return layer.weight_type == WeightType::kInt8
             ? LaunchTiles<Int8Product>(tiles, shape, stream, launch)
             : LaunchTiles<Bf16Product>(tiles, shape, stream, launch);
}

}  // namespace tandem
