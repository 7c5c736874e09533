// A linear layer of many rows by products of four warps (wgmma, sm_90a), with the bits of
// tensor_many_rows.cu where those products have a warp's (wgmma_trial.cu). A block has 128 outputs
// of 256 rows at a time, tile after tile: two warpgroups multiply, each 64 outputs with all rows,
// and a third copies.
//
// Weights are a product's A, in registers: a warp's sixteen rows of it are a panel as it is packed,
// so 8-bit floats are widened once for all rows.
// Inputs are B, in the ring, whose rows lie as the swizzle of 128 bytes has them.
//
// A tile's segments are multiplied one after the other; sums of those before wait in memory of the
// block's, which the second-level cache holds, so that no launch comes behind.

#include "kernels/cuda/tensor_ring.h"

namespace tandem {
namespace {

constexpr int kWgmmaRows = 256;
constexpr int kWgmmaPanels = kWarps;  // one a warp
constexpr int kWgmmaEights = kWgmmaRows / kProductRows;
constexpr int kMultiplyThreads = kWarps * kWarp;
constexpr int kCopyWarps = 4;
constexpr int kCopyThreads = kCopyWarps * kWarp;
constexpr int kCopyPanels = kWgmmaPanels / kCopyWarps;
constexpr int kWgmmaThreads = kMultiplyThreads + kCopyThreads;
// Registers of a thread that copies and of one that multiplies, who needs more than all begin with:
// as many as there are for each.
constexpr int kCopyRegisters = 56;
constexpr int kMultiplyRegisters = 224;
constexpr int kBegunRegisters = 65'536 / kWgmmaThreads / 8 * 8;
static_assert(kCopyThreads * kCopyRegisters + kMultiplyThreads * kMultiplyRegisters <=
              kWgmmaThreads * kBegunRegisters);
constexpr int kWgmmaStages = 4;
// A stage's rows are given to products once so many stages behind it are on their way. With more
// nobody would go on: a stage is left only when products with the next one have begun.
constexpr int kStagesBehind = kWgmmaStages - 2;
// Blocks that run side by side have so many tiles of outputs, by as many of rows as there are
// blocks for, about 2,048 by 2,048 on 132 processors: a square reads least for its products, and
// each of what it reads is in the second-level cache for eight or sixteen blocks.
constexpr int kGroupTiles = 16;

constexpr int kStageBytes = kWgmmaPanels * kBlockPanelBytes + kWgmmaRows * kInputBlockBytes;
// The first stage, and all rows behind it, are where swizzled matrices may begin.
constexpr int kRingAt = 1024;
static_assert(kRingAt >= kBarrierBytes && kWgmmaPanels * kBlockPanelBytes % 1024 == 0);
// A warp's sums on their way out, some rows at a time.
constexpr int kStagedEights = 4;
constexpr int kWarpStaged = kStagedNumbers</*kPanels=*/1, kStagedEights>;
constexpr int kStagedAt = kRingAt + kWgmmaStages * kStageBytes;
constexpr size_t kWgmmaSharedBytes = kStagedAt + sizeof(float) * kWarps * kWarpStaged;

// As many tiles' numbers as there are registers for are loaded at once.
constexpr int kEightsAtOnce = 8;

// Sums that wait: one a level of SegmentTree but the last.
constexpr int kKeptLevels = 3;
static_assert(1 << kKeptLevels == kNumLinearSegments);
constexpr size_t kKeptBytes = sizeof(float4) * kKeptLevels * kWgmmaEights * kMultiplyThreads;

__device__ __forceinline__ void Multiply(float* sums, const uint32_t (&weights)[4], uint64_t rows) {
  WarpgroupMma<kWgmmaRows>(sums, weights, rows, true);
}
__device__ __forceinline__ void Multiply(int32_t* sums, const uint32_t (&weights)[4],
                                         uint64_t rows) {
  WarpgroupMmaInt8<kWgmmaRows>(sums, weights, rows, true);
}

TANDEM_ANYWHERE inline int64_t NumOutputTiles(const PackedLinear& layer) {
  return (NumPanels(layer) + kWgmmaPanels - 1) / kWgmmaPanels;
}

// function(pass) for each of the block's tiles, a pass over all segments.
template <typename Function>
__device__ __forceinline__ void ForEachTile(const TensorLaunch& launch, const Function& function) {
  const int64_t panels = NumPanels(launch.layer);
  const int64_t output_tiles = NumOutputTiles(launch.layer);
  const int64_t of_group = int64_t{kGroupTiles} * launch.row_chunks;
  for (int64_t tile = blockIdx.x; tile < output_tiles * launch.row_chunks; tile += gridDim.x) {
    const int64_t first = tile / of_group * kGroupTiles;
    const int64_t tiles_left = output_tiles - first;
    const auto in_group = static_cast<int>(tile % of_group);
    const int tiles = tiles_left < kGroupTiles ? static_cast<int>(tiles_left) : kGroupTiles;
    const int64_t first_panel = (first + in_group % tiles) * kWgmmaPanels;
    const int64_t first_row = int64_t{in_group / tiles} * kWgmmaRows;
    const int64_t panels_left = panels - first_panel;
    const int64_t rows_left = launch.num_rows - first_row;
    function(Pass{
        .segment = 0,
        .first_panel = static_cast<int>(first_panel),
        .num_panels = static_cast<int>(panels_left < kWgmmaPanels ? panels_left : kWgmmaPanels),
        .first_row = first_row,
        .num_rows = static_cast<int>(rows_left < kWgmmaRows ? rows_left : kWgmmaRows),
        .blocks = {0, static_cast<int>(launch.layer.num_chunks)}});
  }
}

// What copies: all inputs of one tile after the other.
template <typename Product>
__device__ __forceinline__ void CopyTiles(const TensorLaunch& launch, Ring filling) {
  const int thread = static_cast<int>(threadIdx.x) - kMultiplyThreads;
  const int first_panel = thread / kWarp * kCopyPanels;
  Ring giving = filling;
  int behind = 0;
  // Products read what the warp has copied to the next stage, and waited for.
  const auto give = [&] {
    FenceAsyncReads();
    __syncwarp();
    if (thread % kWarp == 0) Arrive(giving.full());
    giving.Next();
  };
  ForEachTile(launch, [&](const Pass& pass) {
    const RowCopier<kWgmmaRows, kCopyThreads> rows(launch, pass, thread);
#pragma unroll 1
    for (int block = pass.blocks.begin; block < pass.blocks.end; ++block) {
      filling.WaitUntilFree();
      CopyPanels<Product>(launch, pass, first_panel, kCopyPanels, block, filling);
      rows.Begin(block, filling);
      CommitCopies();
      filling.Next();
      if (behind < kStagesBehind) {
        ++behind;
        continue;
      }
      WaitForCopies<kStagesBehind>();
      give();
    }
  });
  WaitForCopies<0>();
  for (; behind > 0; --behind) give();
}

// A warpgroup's sums of its outputs and a tile's rows.
template <typename Product>
class WarpgroupSums {
 public:
  using Sum = Product::Sum;

  // From zero over `count` stages of the ring, the next ones. Weights of a half of a stage are
  // loaded while products with those of the half before are under way, so these read registers that
  // nobody touches; a stage is left behind the first half of the next.
  __device__ __forceinline__ void SumStages(Ring* ring, int weights_at, int count) {
#pragma unroll
    for (int eight = 0; eight < kWgmmaEights; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i) all_[eight][i] = Sum{0};
    }
    Settle(&all_[0][0], kWgmmaEights * 4);
    SharedPtr<uint64_t> before = ring->full();
    uint32_t first[2][4];
    uint32_t second[2][4];
    ring->WaitUntilFull();
    Load(ring->panels() + weights_at, 0, first);
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage) {
      Begin(ring->rows(), first);
      WaitForProducts<1>();
      if (stage > 0) Ring::Leave(before);
      Load(ring->panels() + weights_at, 2, second);
      Begin(ring->rows() + 2 * kStepBytes, second);
      WaitForProducts<1>();
      before = ring->full();
      ring->Next();
      if (stage + 1 == count) break;
      ring->WaitUntilFull();
      Load(ring->panels() + weights_at, 0, first);
    }
    WaitForProducts<0>();
    Settle(&all_[0][0], kWgmmaEights * 4);
    Ring::Leave(before);
  }

  __device__ const Sum (&eight(int index) const)[4] { return all_[index]; }

 private:
  __device__ __forceinline__ static void Load(SharedPtr<std::byte> from, int step,
                                              uint32_t (&weights)[2][4]) {
    const typename Product::Two two = Product::Load(from, step);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 four = two.Widened(i);
      weights[i][0] = four.x;
      weights[i][1] = four.y;
      weights[i][2] = four.z;
      weights[i][3] = four.w;
    }
    Settle(&weights[0][0], 8);
  }
  __device__ __forceinline__ void Begin(SharedPtr<std::byte> rows,
                                        const uint32_t (&weights)[2][4]) {
    FenceProducts();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      Multiply(&all_[0][0], weights[step], SwizzledMatrix(rows + step * kStepBytes));
    }
    CommitProducts();
  }

  Sum all_[kWgmmaEights][4];
};

// Sums of segments on their way to one. Those that are kept are the left ones of SegmentTree's
// pairs, a level each: [block, level, eight rows, thread]. No segment is empty.
class SegmentSums {
 public:
  __device__ explicit SegmentSums(float4* all)
      : kept_(all + int64_t{blockIdx.x} * (kKeptLevels * kLevelSums) + threadIdx.x) {}

  // `sums` are the segment's; behind the last one they are those of all.
  __device__ __forceinline__ void Add(int segment, float (&sums)[kWgmmaEights][4]) const {
    float4* at = kept_;
#pragma unroll 1
    for (int left = segment; left % 2 == 1; left /= 2, at += kLevelSums) AddTo(at, sums);
    if (segment + 1 == kNumLinearSegments) return;
#pragma unroll
    for (int eight = 0; eight < kWgmmaEights; ++eight) {
      at[eight * kMultiplyThreads] =
          make_float4(sums[eight][0], sums[eight][1], sums[eight][2], sums[eight][3]);
    }
  }

 private:
  static constexpr int kLevelSums = kWgmmaEights * kMultiplyThreads;

  __device__ __forceinline__ static void AddTo(const float4* left, float (&sums)[kWgmmaEights][4]) {
#pragma unroll
    for (int first = 0; first < kWgmmaEights; first += kEightsAtOnce) {
#pragma unroll
      for (int eight = first; eight < first + kEightsAtOnce; ++eight) {
        const float4 four = left[eight * kMultiplyThreads];
        sums[eight][0] = four.x + sums[eight][0];
        sums[eight][1] = four.y + sums[eight][1];
        sums[eight][2] = four.z + sums[eight][2];
        sums[eight][3] = four.w + sums[eight][3];
      }
      Settle(&sums[first][0], kEightsAtOnce * 4);
    }
  }

  float4* const kept_;  // this thread's
};

// What multiplies: warp w has the w-th panel of the block's tiles, or the last one there is.
template <typename Product>
__device__ __forceinline__ void MultiplyTiles(const TensorLaunch& launch, Ring ring) {
  const PackedLinear& layer = launch.layer;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int num_segments = layer.segmented ? kNumLinearSegments : 1;
  const SharedPtr<float> staged =
      SharedCast<float>(SharedMemory() + kStagedAt) + warp * kWarpStaged;
  SegmentSums segments(launch.segment_sums);
  ForEachTile(launch, [&](const Pass& pass) {
    const int panel = Least(warp, pass.num_panels - 1);
    const int weights_at = panel * Product::kPanelBytes + lane * Product::kLaneBytes;
#pragma unroll 1
    for (int segment = 0; segment < num_segments; ++segment) {
      const BlockRange blocks = BlocksOf(layer, segment);
      WarpgroupSums<Product> products;
      products.SumStages(&ring, weights_at, blocks.end - blocks.begin);
      float sums[kWgmmaEights][4];
#pragma unroll
      for (int eight = 0; eight < kWgmmaEights; ++eight) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[eight][i] = static_cast<float>(products.eight(eight)[i]);
          if constexpr (Product::kScaled) {
            const int row = eight * kProductRows + lane % 4 * 2 + i % 2;
            if (row < pass.num_rows) {
              sums[eight][i] = sums[eight][i] * ScaleOf(launch, pass.first_row + row, segment);
            }
          }
        }
        if (eight % kEightsAtOnce == kEightsAtOnce - 1) {
          Settle(&sums[eight + 1 - kEightsAtOnce][0], kEightsAtOnce * 4);
        }
      }
      if (layer.segmented) segments.Add(segment, sums);
      if (segment + 1 < num_segments || panel < warp) continue;
      StoreThroughShared<Product, /*kPanels=*/1, kWgmmaEights, kStagedEights,
                         /*kScalesRows=*/false>(
          launch, staged, pass.first_row, int64_t{pass.first_panel + panel} * kPanelOutputs,
          [&](int, int eight) -> decltype(auto) { return (sums[eight]); });
    }
  });
}

template <typename Product>
__global__ void TANDEM_THREADS(kWgmmaThreads, 1) WgmmaRowsKernel(TensorLaunch launch) {
  if (!HasWarpgroupProducts()) return BeginLaunch();
  // With room for panels of 2 KiB, though those of 8-bit floats are smaller: a stage's rows begin
  // at a multiple of 1,024 bytes.
  const RingShape shape = {.panels = kWgmmaPanels, .rows = kWgmmaRows, .stages = kWgmmaStages};
  Ring ring(shape, kRingAt);
  ring.Init(kCopyWarps * (WarpCopyArrivals() + 1));
  BeginLaunch();
  if (threadIdx.x < kMultiplyThreads) {
    RaiseRegisters<kMultiplyRegisters>();
    MultiplyTiles<Product>(launch, ring);
  } else {
    LowerRegisters<kCopyRegisters>();
    CopyTiles<Product>(launch, ring);
  }
}

int64_t NumRowTiles(int64_t num_rows) { return CeilDiv<int64_t>(num_rows, kWgmmaRows); }

int64_t NumWgmmaBlocks(const PackedLinear& layer, int64_t num_rows, const ProcessorLimits& limits) {
  return std::min<int64_t>(limits.num_processors, NumOutputTiles(layer) * NumRowTiles(num_rows));
}

}  // namespace

size_t WgmmaSumsBytes(const PackedLinear& layer, int64_t num_rows, const ProcessorLimits& limits) {
  return static_cast<size_t>(NumWgmmaBlocks(layer, num_rows, limits)) * kKeptBytes;
}

cudaError_t LaunchWgmmaRows(const ProcessorLimits& limits, cudaStream_t stream,
                            TensorLaunch* to_fill) {
  TensorLaunch& launch = *to_fill;
  launch.row_chunks = static_cast<int>(NumRowTiles(launch.num_rows));
  const auto kernel = launch.layer.weight_type == WeightType::kInt8  ? WgmmaRowsKernel<Int8Product>
                      : launch.layer.weight_type == WeightType::kFp8 ? WgmmaRowsKernel<Fp8Product>
                                                                     : WgmmaRowsKernel<Bf16Product>;
  return Launch(kernel,
                {.blocks = NumWgmmaBlocks(launch.layer, launch.num_rows, limits),
                 .threads = kWgmmaThreads,
                 .shared_bytes = kWgmmaSharedBytes},
                stream, launch);
}

}  // namespace tandem
