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

// What a lane has of a warp's sums.
template <typename Product, int kTiles>
struct WarpSums {
  typename Product::Sum all[kWarpPanels][kTiles][4] = {};
};
// In 4 bits: those of the groups before, scaled, and of the running one.
template <int kTiles>
struct WarpSums<Int4Product, kTiles> {
  float all[kWarpPanels][kTiles][4] = {};
  int32_t of_group[kWarpPanels][kTiles][4] = {};
};

template <int kTiles>
struct RowsOfTwoSteps {
  uint32_t rows[kTiles][2][2];

  __device__ void LoadAll(const Ring& ring, const LanePlaces& places, int half) {
    const SharedPtr<std::byte> from = ring.rows() + places.rows[half];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      LoadRows(from + tile * kProductRows * kInputBlockBytes, rows[tile]);
    }
  }
};

// What a warp of few rows multiplies at once: two steps, a half of a stage.
template <typename Product, int kTiles>
struct TwoSteps : RowsOfTwoSteps<kTiles> {
  Product::Two weights[kWarpPanels];  // Widened, if they are, once they are multiplied.

  __device__ explicit TwoSteps(const TensorLaunch&) {}
  // So many panels of the warp are there.
  __device__ void Load(const Ring& ring, const LanePlaces& places, int panels, int half) {
    const SharedPtr<std::byte> from = ring.panels() + places.weights;
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
      if (p >= panels) break;
      weights[p] = Product::Load(from + p * kWarps * Product::kPanelBytes, half * 2);
    }
    this->LoadAll(ring, places, half);
  }
  __device__ void Multiply(int panels, int /*half*/, WarpSums<Product, kTiles>* sums) const {
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
      if (p >= panels) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 widened = weights[p].Widened(i);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          Product::Multiply(sums->all[p][tile], widened, this->rows[tile][i]);
        }
      }
    }
  }
};

// The same of 4 bits. A group's products are summed exactly, its sum is multiplied with the scale
// and added to the groups' before, a rounding each.
template <int kTiles>
struct TwoSteps<Int4Product, kTiles> : RowsOfTwoSteps<kTiles> {
  const int panel_bytes;
  const int group_shift;  // A group has 2^so many steps.
  uint2 weights[kWarpPanels][2];
  uint32_t scales[kWarpPanels][2][2];  // of outputs l / 4 and 8 more, each with its zero

  __device__ explicit TwoSteps(const TensorLaunch& launch)
      : panel_bytes(launch.ring.panel_bytes), group_shift(launch.layer.group / kStepBytes / 2) {}

  __device__ void Load(const Ring& ring, const LanePlaces& places, int panels, int half) {
    const int lane = threadIdx.x % kWarp;
    const SharedPtr<std::byte> from = ring.panels() + places.weights;
    const SharedPtr<std::byte> from_scales =
        from + (kInt4NumberBytes - lane * Int4Product::kLaneBytes + lane / 4 * 4);
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
      if (p >= panels) break;
      const int panel = p * kWarps * panel_bytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int step = half * 2 + i;
        weights[p][i] = SharedCast<uint2>(from + panel + step * kInt4StepPanelBytes)[0];
        const SharedPtr<uint32_t> of_group =
            SharedCast<uint32_t>(from_scales + panel + (step >> group_shift) * kInt4ScaleBytes);
        scales[p][i][0] = of_group[0];
        scales[p][i][1] = of_group[8];
      }
    }
    this->LoadAll(ring, places, half);
  }

  __device__ void Multiply(int panels, int half, WarpSums<Int4Product, kTiles>* sums) const {
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
      if (p >= panels) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 widened = Int4Product::Widened(weights[p][i], scales[p][i]);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          Int8Product::Multiply(sums->of_group[p][tile], widened, this->rows[tile][i]);
        }
        if (((half * 2 + i + 1) & ((1 << group_shift) - 1)) != 0) continue;
        const float scale[2] = {Int4Product::ScaleOf(scales[p][i][0]),
                                Int4Product::ScaleOf(scales[p][i][1])};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int at = 0; at < 4; ++at) {
            int32_t& of_group = sums->of_group[p][tile][at];
            float& sum = sums->all[p][tile][at];
            sum = sum + static_cast<float>(of_group) * scale[at / 2];
            of_group = 0;
          }
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
        CopyPanels<Product>(launch, pass, 0, kPassPanels, block, ring);
        ring.Next();
      }
    }
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

  const LanePlaces places(warp * Product::PanelBytes(launch.ring), Product::kLaneBytes, 0);
  while (passes.Take(&pass)) {
    const int panels = (pass.num_panels - warp + kWarps - 1) / kWarps;
    WarpSums<Product, kTiles> sums;
    // Chains of few products wait for each other: what is multiplied next is loaded before.
    constexpr bool kAhead = kTiles <= 2;
    TwoSteps<Product, kTiles> now(launch);
    TwoSteps<Product, kTiles> next(launch);
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
        now.Multiply(panels, 0, &sums);
        if (block + 1 < pass.blocks.end) {
          ring.WaitUntilFull();
          now.Load(ring, places, panels, 0);
        }
        next.Multiply(panels, 1, &sums);
      } else {
        ring.WaitUntilFull();
        now.Load(ring, places, panels, 0);
        now.Multiply(panels, 0, &sums);
        now.Load(ring, places, panels, 1);
        ring.Leave();
        ring.Next();
        now.Multiply(panels, 1, &sums);
      }
    }
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
      if (p >= panels) break;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        StoreProduct<Product>(launch, pass, pass.first_panel + warp + p * kWarps, tile,
                              sums.all[p][tile]);
      }
    }
  }
}

template <typename Product>
cudaError_t LaunchTiles(int tiles, const LaunchShape& shape, cudaStream_t stream,
                        const TensorLaunch& launch) {
  if (tiles == 1) return Launch(FewRowsKernel<Product, 1>, shape, stream, launch);
  if (tiles == 2) return Launch(FewRowsKernel<Product, 2>, shape, stream, launch);
  if constexpr (Product::kMaxTiles == 8) {
    if (tiles == 8) return Launch(FewRowsKernel<Product, 8>, shape, stream, launch);
  }
  return Launch(FewRowsKernel<Product, 4>, shape, stream, launch);
}

}  // namespace

cudaError_t LaunchFewRows(const ProcessorLimits& limits, cudaStream_t stream,
                          TensorLaunch* to_fill) {
  TensorLaunch& launch = *to_fill;
  const PackedLinear& layer = launch.layer;
  const bool int4 = layer.weight_type == WeightType::kInt4;
  const int most_rows = kProductRows * (int4 ? Int4Product::kMaxTiles : Bf16Product::kMaxTiles);
  const int rows = static_cast<int>(std::min<int64_t>(launch.num_rows, most_rows));
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
  launch.ring = {.panels = launch.pass_panels,
                 .rows = tiles * kProductRows,
                 .panel_bytes = PanelBytesOf(layer)};
  SetStages(limits, &launch.ring);
  const LaunchShape shape = {
      .blocks = blocks, .threads = kFewThreads, .shared_bytes = SharedBytes(launch.ring)};
  if (int4) return LaunchTiles<Int4Product>(tiles, shape, stream, launch);
  if (layer.weight_type == WeightType::kFp8) {
    return LaunchTiles<Fp8Product>(tiles, shape, stream, launch);
  }
  return layer.weight_type == WeightType::kInt8
             ? LaunchTiles<Int8Product>(tiles, shape, stream, launch)
             : LaunchTiles<Bf16Product>(tiles, shape, stream, launch);
}

}  // namespace tandem
