// A linear layer of many rows on the tensor cores. A block has 256 outputs of 128 rows; each of
// eight warps copies a part of both, and multiplies 64 outputs with 64 rows.

#include "kernels/cuda/tensor_ring.h"

namespace tandem {
namespace {

constexpr int kTileThreads = kWarps * kWarp;
constexpr int kTilePanels = 16;
constexpr int kTileWarpPanels = 4;  // 64 outputs
constexpr int kTileWarpTiles = 8;   // 64 rows

// A warp's sums leave where the ring was, so many times 8 rows at once.
constexpr int kStagedTiles = 4;
constexpr int kTileStaged = kStagedNumbers<kTileWarpPanels, kStagedTiles>;
constexpr size_t kStagedEnd = kBarrierBytes + sizeof(float) * kWarps * kTileStaged;
static_assert(kStagedEnd <= kLeastSharedBytes);

// One block a (tile of outputs, tile of rows, segment); warp w has panels w % 4, rows w / 4.
template <typename Product>
__global__ void TANDEM_THREADS(kTileThreads, 1) ManyRowsKernel(TensorLaunch launch) {
  const PackedLinear& layer = launch.layer;
  const int warp = threadIdx.x / kWarp;
  const int64_t output_tiles = (NumPanels(layer) + kTilePanels - 1) / kTilePanels;
  const int64_t first_panel = blockIdx.x / launch.row_chunks % output_tiles * kTilePanels;
  const int64_t first_row = int64_t{blockIdx.x % launch.row_chunks} * kTileRows;
  const auto segment = static_cast<int>(blockIdx.x / (output_tiles * launch.row_chunks));
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
    CopyPanels<Product>(launch, pass, warp * (kTilePanels / kWarps), kTilePanels / kWarps, filled,
                        filling);
    rows.Copy(filled, filling);
    filling.Next();
    ++filled;
  };
  for (int stage = 0; stage < ahead; ++stage) fill();

  const int warp_panel = warp % 4 * kTileWarpPanels;
  const int warp_row = warp / 4 * kTileWarpTiles * kProductRows;
  const int panels_of_warp = pass.num_panels - warp_panel;
  const LanePlaces places(warp_panel * Product::kPanelBytes, Product::kLaneBytes, warp_row);
  typename Product::Sum sums[kTileWarpPanels][kTileWarpTiles][4] = {};
  for (int block = pass.blocks.begin; block < pass.blocks.end; ++block) {
    fill();
    ring.WaitUntilFull();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const SharedPtr<std::byte> from = ring.panels() + places.weights;
      uint4 w[kTileWarpPanels][2] = {};
#pragma unroll
      for (int p = 0; p < kTileWarpPanels; ++p) {
        if (p >= panels_of_warp) break;
        const typename Product::Two two = Product::Load(from + p * Product::kPanelBytes, half * 2);
        w[p][0] = two.Widened(0);
        w[p][1] = two.Widened(1);
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
      SharedCast<float>(SharedMemory() + kBarrierBytes) + warp * kTileStaged;
  StoreThroughShared<Product, kTileWarpPanels, kTileWarpTiles, kStagedTiles>(
      launch, staged, first_row + warp_row, (first_panel + warp_panel) * kPanelOutputs,
      [&](int panel, int tile) -> decltype(auto) { return (sums[panel][tile]); });
}

}  // namespace

cudaError_t LaunchManyRows(const ProcessorLimits& limits, cudaStream_t stream,
                           TensorLaunch* to_fill) {
  TensorLaunch& launch = *to_fill;
  const PackedLinear& layer = launch.layer;
  launch.row_chunks = static_cast<int>(CeilDiv<int64_t>(launch.num_rows, kTileRows));
  launch.ring = {.panels = kTilePanels, .rows = kTileRows, .panel_bytes = PanelBytesOf(layer)};
  SetStages(limits, &launch.ring);
  const auto kernel = layer.weight_type == WeightType::kInt8  ? ManyRowsKernel<Int8Product>
                      : layer.weight_type == WeightType::kFp8 ? ManyRowsKernel<Fp8Product>
                                                              : ManyRowsKernel<Bf16Product>;
  return Launch(kernel,
                {.blocks = CeilDiv<int64_t>(NumPanels(layer), kTilePanels) * launch.row_chunks *
                           (layer.segmented ? kNumLinearSegments : 1),
                 .threads = kTileThreads,
                 .shared_bytes = std::max(SharedBytes(launch.ring), kStagedEnd)},
                stream, launch);
}

}  // namespace tandem
