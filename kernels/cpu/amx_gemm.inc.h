// GEMM by tiles (amx_tiles.h) over the same packed weights as other kernels have: a block is 16
// units of a panel, [unit][output], of which a tile takes 16 outputs. Included once for each kind
// of tiles.
//
// A pass is up to two tiles of rows times a panel: four tiles of sums stay in registers over a
// whole segment of inputs, or all of them. Packed activations of a task stay in the second-level
// cache, weights pass by once.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/int8_rows.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/linear_sums.h"

namespace tandem {
namespace {

// Weights of 8 bits, or of bf16. A packed tile of rows is [row][segment] RowRuns, of 8 bits only,
// and [block][row][unit of the block], what the last block lacks being zeros.
template <typename Tiles, bool kIsInt8>
struct TileGemm {
  static constexpr int kPanelOutputs = 2 * kLanes;
  static constexpr int kPerUnit = kIsInt8 ? 4 : 2;
  static constexpr int kUnitBytes = 4;
  static constexpr int kBlockUnits = kAmxTileRowBytes / kUnitBytes;
  static constexpr int kBlockInputs = kBlockUnits * kPerUnit;
  static constexpr int kPanelUnitBytes = kPanelOutputs * kUnitBytes;
  static constexpr int kPanelBlockBytes = kBlockUnits * kPanelUnitBytes;
  static constexpr int kPanelScaleBytes = kIsInt8 ? kPanelOutputs * 4 : 0;
  static constexpr int kRowRunBytes =
      kIsInt8 ? kNumLinearSegments * static_cast<int>(sizeof(RowRun)) : 0;
  static constexpr int32_t kWeightExcess = 128;
  static constexpr int kPassFloats = 2 * kAmxTileRows * kPanelOutputs;
  static constexpr int kSumsStride = kPanelOutputs * 4;  // bytes
  // Weights that come from memory for a pass alone are fetched so far ahead.
  static constexpr int64_t kPrefetchBytes = 8192;
  static_assert(kLinearSegmentMultiple % kBlockInputs == 0);

  // Tiles: sums of (tile of rows, half of a panel), rows, and weights.
  static constexpr int kSum00 = 0, kSum01 = 1, kSum10 = 2, kSum11 = 3;
  static constexpr int kRows0 = 4, kRows1 = 5, kWeights0 = 6, kWeights1 = 7;

  static int64_t Units(int64_t in_features) { return (in_features + kPerUnit - 1) / kPerUnit; }
  static int64_t Blocks(int64_t in_features) {
    return (in_features + kBlockInputs - 1) / kBlockInputs;
  }
  static int64_t RowBytes(int64_t in_features) {
    return kRowRunBytes + Blocks(in_features) * kAmxTileRowBytes;
  }

  struct Pass {
    const GemmTask& task;
    const std::byte* panel;
    const std::byte* last_block;  // Where the last block of the panel is not full: filled up.
    const std::byte* rows[2];     // Tiles as packed.
    int num_rows[2];              // The second may have none.
    const std::byte* fetched;     // With block b what lies from here + b · fetched_bytes on.
    int64_t fetched_bytes;
  };

  static void Configure(const int (&num_rows)[2], Tiles* tiles) {
    TileConfig config;
    const auto set = [&config](int tile, int rows) {
      config.rows[tile] = static_cast<uint8_t>(rows);
      config.row_bytes[tile] = rows == 0 ? 0 : kAmxTileRowBytes;
    };
    for (const int tile : {kSum00, kSum01, kRows0}) set(tile, num_rows[0]);
    for (const int tile : {kSum10, kSum11, kRows1}) set(tile, num_rows[1]);
    for (const int tile : {kWeights0, kWeights1}) set(tile, kBlockUnits);
    tiles->Configure(config);
  }

  template <int kSum, int kRows, int kWeights>
  TANDEM_LANES void Multiply(Tiles* tiles) {
    if constexpr (kIsInt8) {
      tiles->template MultiplyInt8<kSum, kRows, kWeights>();
    } else {
      tiles->template MultiplyBf16<kSum, kRows, kWeights>();
    }
  }

  // Sums over blocks [begin, end) to `sums`, [row][output] over both tiles of rows: whole numbers
  // or floats.
  template <bool kBoth>
  static void SumBlocks(const Pass& pass, int64_t begin, int64_t end, Tiles* tiles, float* sums) {
    const int64_t full = Units(pass.task.in_features) / kBlockUnits;
    const std::byte* rows[2];
    int64_t block_bytes[2];
    for (int t = 0; t < 2; ++t) {
      block_bytes[t] = pass.num_rows[t] * kAmxTileRowBytes;
      rows[t] = pass.rows[t] + pass.num_rows[t] * kRowRunBytes + begin * block_bytes[t];
    }
    tiles->template Zero<kSum00>();
    tiles->template Zero<kSum01>();
    if constexpr (kBoth) {
      tiles->template Zero<kSum10>();
      tiles->template Zero<kSum11>();
    }
    for (int64_t block = begin; block < end; ++block) {
      const std::byte* const weights =
          block < full ? pass.panel + block * kPanelBlockBytes : pass.last_block;
      const std::byte* const fetched = pass.fetched + block * pass.fetched_bytes;
      for (int64_t i = 0; i < pass.fetched_bytes; i += 64) {
        __builtin_prefetch(fetched + i, /*rw=*/0, /*locality=*/2);
      }
      tiles->template Load<kRows0>(rows[0], kAmxTileRowBytes);
      tiles->template Load<kWeights0>(weights, kPanelUnitBytes);
      Multiply<kSum00, kRows0, kWeights0>(tiles);
      tiles->template Load<kWeights1>(weights + kPanelUnitBytes / 2, kPanelUnitBytes);
      Multiply<kSum01, kRows0, kWeights1>(tiles);
      if constexpr (kBoth) {
        tiles->template Load<kRows1>(rows[1], kAmxTileRowBytes);
        Multiply<kSum10, kRows1, kWeights0>(tiles);
        Multiply<kSum11, kRows1, kWeights1>(tiles);
        rows[1] += block_bytes[1];
      }
      rows[0] += block_bytes[0];
    }
    tiles->template Store<kSum00>(sums, kSumsStride);
    tiles->template Store<kSum01>(sums + kLanes, kSumsStride);
    if constexpr (kBoth) {
      sums += pass.num_rows[0] * kPanelOutputs;
      tiles->template Store<kSum10>(sums, kSumsStride);
      tiles->template Store<kSum11>(sums + kLanes, kSumsStride);
    }
  }

  // The same over inputs [begin, end), a segment or all, as floats times the scales of the rows.
  static void Sum(const Pass& pass, int segment, int64_t begin, int64_t end, Tiles* tiles,
                  float* sums) {
    const auto sum_blocks = pass.num_rows[1] > 0 ? SumBlocks<true> : SumBlocks<false>;
    sum_blocks(pass, begin / kBlockInputs, Blocks(end), tiles, sums);
    if constexpr (kIsInt8) {
      for (int t = 0; t < 2; ++t) {
        const auto* const runs = reinterpret_cast<const RowRun*>(pass.rows[t]);
        for (int r = 0; r < pass.num_rows[t]; ++r, sums += kPanelOutputs) {
          const RowRun run = runs[r * kNumLinearSegments + segment];
          const U32x16 first = SplatU32(static_cast<uint32_t>(run.first_sum));
          for (int i = 0; i < kPanelOutputs; i += kLanes) {
            StoreF32(sums + i, ToFloats(SignedOf(LoadU32(sums + i) + first)) * run.scale);
          }
        }
      }
    }
  }

  static void RunPass(const Pass& pass, int64_t first_row, int64_t first_output, Tiles* tiles) {
    const GemmTask& task = pass.task;
    alignas(64) float buffers[4][kPassFloats];
    const float* sums = buffers[0];
    const int64_t num_rows = pass.num_rows[0] + pass.num_rows[1];
    if (task.segmented) {
      sums = SumSegments(task.in_features, num_rows * kPanelOutputs, buffers,
                         [&](int segment, int64_t begin, int64_t end, float* to) {
                           Sum(pass, segment, begin, end, tiles, to);
                         });
    } else {
      Sum(pass, /*segment=*/0, 0, task.in_features, tiles, buffers[0]);
    }
    const SumsOfRows rows{.sums = sums,
                          .stride = kPanelOutputs,
                          .first_row = first_row,
                          .num_rows = num_rows,
                          .first_output = first_output};
    const std::byte* const scales = pass.panel + Units(task.in_features) * kPanelUnitBytes;
    const auto scales_of = [scales](int i) __attribute__((always_inline)) {
      return LoadF32(reinterpret_cast<const float*>(scales) + i);
    };
    FinishRows<kIsInt8>(task, rows, scales_of);
  }

  static void Run(const GemmTask& task) {
    Tiles tiles;
    const RowTiles row_tiles = MakeRowTiles(task.num_rows, kAmxTileRows);
    const int64_t num_passes = (row_tiles.count + 1) / 2;
    const int64_t units = Units(task.in_features), blocks = Blocks(task.in_features);
    const int64_t panel_bytes = units * kPanelUnitBytes + kPanelScaleBytes;
    // A pass alone fetches its own weights; of several each a part of the panel that follows.
    const int64_t fetched_lines =
        (panel_bytes / 64 + num_passes * blocks - 1) / (num_passes * blocks);
    int configured[2] = {};
    for (int64_t first_output = 0; first_output < task.num_outputs; first_output += kPanelOutputs) {
      const std::byte* const panel = task.panels + first_output / kPanelOutputs * panel_bytes;
      alignas(64) std::byte last_block[kPanelBlockBytes];
      const int64_t last_bytes = units % kBlockUnits * kPanelUnitBytes;
      std::memcpy(last_block, panel + units / kBlockUnits * kPanelBlockBytes, last_bytes);
      std::memset(last_block + last_bytes, 0, kPanelBlockBytes - last_bytes);
      for (int64_t p = 0; p < num_passes; ++p) {
        const int64_t tile = 2 * p;
        Pass pass{.task = task,
                  .panel = panel,
                  .last_block = last_block,
                  .rows = {},
                  .num_rows = {},
                  .fetched = num_passes == 1
                                 ? panel + kPrefetchBytes
                                 : panel + panel_bytes + p * blocks * fetched_lines * 64,
                  .fetched_bytes = num_passes == 1 ? kPanelBlockBytes : fetched_lines * 64};
        for (int t = 0; t < 2 && tile + t < row_tiles.count; ++t) {
          pass.rows[t] = task.activations + row_tiles.begin(tile + t) * RowBytes(task.in_features);
          pass.num_rows[t] = row_tiles.rows(tile + t);
        }
        if (pass.num_rows[0] != configured[0] || pass.num_rows[1] != configured[1]) {
          Configure(pass.num_rows, &tiles);
          for (int t = 0; t < 2; ++t) configured[t] = pass.num_rows[t];
        }
        RunPass(pass, row_tiles.begin(tile), first_output, &tiles);
      }
    }
  }

  // Inputs [first, first + count) of a row in 8 bits, `first` being that of a block, and zeros to
  // the end of the last block. Returns their sum.
  template <typename Element>
  TANDEM_LANES int32_t PackNumbers(const Element* from, int64_t count, float scale, std::byte* to,
                                   int64_t block_bytes) {
    constexpr DType kDType = sizeof(Element) == 4 ? DType::kF32 : DType::kBF16;
    I32x16 sums{};
    for (int64_t block = 0; block < count; block += kBlockInputs, to += block_bytes) {
      int8_t bytes[kBlockInputs] = {};
      for (int64_t i = 0; i < kBlockInputs && block + i < count; i += kLanes) {
        const int lanes = LanesAt(block + i, count);
        const I32x16 q = ToInt8Of(LoadLanes(kDType, from, block + i, lanes), scale);
        sums = sums + q;
        StoreInt8(bytes + i, q);
      }
      std::memcpy(to, bytes, kBlockInputs);
    }
    return SumOfLanes(sums);
  }

  template <typename Element>
  static void PackRows(const PackTask& task) {
    auto* const runs = reinterpret_cast<RowRun*>(task.packed);
    const int64_t count = task.end() - task.begin();
    const int64_t block_bytes = task.rows * kAmxTileRowBytes;
    for (int r = 0; r < task.rows; ++r) {
      const Element* const from =
          static_cast<const Element*>(task.input) + r * task.in_features + task.begin();
      std::byte* const to = task.packed + task.rows * kRowRunBytes +
                            task.begin() / kBlockInputs * block_bytes + r * kAmxTileRowBytes;
      if constexpr (kIsInt8) {
        RowRun& run = runs[r * kNumLinearSegments + task.segment];
        run.scale = Int8Scale(LargestOfRun(from, count, kNoOutliers));
        run.first_sum = -kWeightExcess * PackNumbers(from, count, run.scale, to, block_bytes);
      } else {
        for (int64_t block = 0; block < Blocks(count); ++block) {
          const int64_t left = count - block * kBlockInputs;
          const int64_t bytes = (left < kBlockInputs ? left : kBlockInputs) * 2;
          std::memcpy(to + block * block_bytes, from + block * kBlockInputs, bytes);
          std::memset(to + block * block_bytes + bytes, 0, kAmxTileRowBytes - bytes);
        }
      }
    }
  }

  template <typename Element>
  static constexpr GemmKernels Table() {
    constexpr DType kDType = sizeof(Element) == 4 ? DType::kF32 : DType::kBF16;
    return GemmKernels{.weight_type = kIsInt8 ? WeightType::kInt8 : WeightTypeOf(kDType),
                       .compute_dtype = kDType,
                       .panel_outputs = kPanelOutputs,
                       .k_per_unit = kPerUnit,
                       .weight_unit_bytes = kUnitBytes,
                       .panel_scale_bytes = kPanelScaleBytes,
                       .panel_group_bytes = 0,
                       .activation_unit_bytes = kUnitBytes,
                       .activation_block_units = kBlockUnits,
                       .row_run_bytes = kRowRunBytes,
                       .row_group_bytes = 0,
                       .max_tile_rows = kAmxTileRows,
                       .panel_step = 1,
                       .pack_rows = PackRows<Element>,
                       .run = Run};
  }
};

}  // namespace
}  // namespace tandem
