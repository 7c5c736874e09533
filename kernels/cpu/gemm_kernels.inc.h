// Tiles of GEMM over any policy: segments, their tree, bias, rounding (kernels/api/linear.h).
// Included once per instruction set.

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/micro_kernel.h"

namespace tandem {
namespace {

// kVectors vectors of outputs a panel; at most kMaxRows rows a tile; kSums sums fit the registers.
template <typename Policy, int kVectors, int kMaxRows, int kSums>
struct Gemm {
  static constexpr int kPanelOutputs = kVectors * kLanes;
  static constexpr int kPanelUnitBytes = kVectors * Policy::kWeightVectorBytes;
  static constexpr int kMaxBuffer = kSums * kLanes;
  // In flight when each tile of rows has its weights from memory.
  static constexpr int kPrefetchBytes = 4096;
  static_assert(kMaxRows * kVectors <= kSums);

  // Panels that few rows take at once: independent sums hide the latency of one, and streams of
  // weights that of memory.
  static constexpr int PanelsOf(int rows) {
    for (const int panels : {4, 2}) {
      if (rows * panels * kVectors <= kSums) return panels;
    }
    return 1;
  }

  static int64_t Units(int64_t in_features) {
    return (in_features + Policy::kPerUnit - 1) / Policy::kPerUnit;
  }

  // Where tile `tile` of `num_tiles`, which use the same panel one after the other, finds its
  // weights, and what it fetches into the cache meanwhile. One tile alone: its own panels, some way
  // ahead. Of several each a part of the next panel, evenly, so that reading memory takes no time
  // of its own.
  struct Weights {
    const std::byte* panels;
    int64_t panel_bytes;
    int tile, num_tiles;

    int64_t prefetch_stride() const {
      return num_tiles == 1 ? kPanelUnitBytes
                            : (Policy::kWeightVectorBytes + num_tiles - 1) / num_tiles;
    }
    const std::byte* prefetch(int v, int num_panels) const {
      if (num_tiles == 1) {
        return panels + v / kVectors * panel_bytes + kPrefetchBytes / num_panels +
               v % kVectors * Policy::kWeightVectorBytes;
      }
      return panels + panel_bytes + (tile * kVectors + v) * panel_bytes / (num_tiles * kVectors);
    }
  };

  // sums [kRows, kPanels · kPanelOutputs] of units [begin, end).
  template <int kRows, int kPanels>
  static void Sum(const std::byte* a, const Weights& weights, int64_t begin, int64_t end,
                  float* sums) {
    F32x16 acc[kRows][kPanels * kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kPanels * kVectors; ++v) acc[r][v] = F32x16{};
    }
    const std::byte* w[kPanels * kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kPanels * kVectors; ++v) {
      w[v] = weights.panels + v / kVectors * weights.panel_bytes + begin * kPanelUnitBytes +
             v % kVectors * Policy::kWeightVectorBytes;
    }
    const int64_t prefetch_stride = weights.prefetch_stride();
    const std::byte* prefetch[kPanels * kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kPanels * kVectors; ++v) {
      prefetch[v] = weights.prefetch(v, kPanels) + begin * prefetch_stride;
    }
    constexpr int64_t kUnitStride = kRows * Policy::kRowUnitBytes;
    AccumulateUnits<Policy, kRows, kPanels * kVectors>(a + begin * kUnitStride, kUnitStride,
                                                       Policy::kRowUnitBytes, w, kPanelUnitBytes,
                                                       prefetch, prefetch_stride, end - begin, acc);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kPanels * kVectors; ++v) {
        StoreF32(sums + (r * kPanels * kVectors + v) * kLanes, acc[r][v]);
      }
    }
  }

  // The pairwise tree over segments, as they come: a binary counter whose digits are sums.
  // Returns the buffer that holds the result.
  template <int kRows, int kPanels>
  static const float* SumSegments(const std::byte* a, const Weights& weights, int64_t in_features,
                                  float (*buffers)[kMaxBuffer]) {
    constexpr int kCount = kRows * kPanels * kPanelOutputs;
    float* waiting[4] = {};  // by level; null: nothing there
    float* current = nullptr;
    int next_buffer = 0;  // of five: at most one a level, and the current one
    for (int segment = 0; segment < kNumLinearSegments; ++segment) {
      const int64_t begin = LinearSegmentBegin(in_features, segment);
      const int64_t end = LinearSegmentBegin(in_features, segment + 1);
      current = nullptr;
      if (begin < end) {
        while (IsWaiting(waiting, buffers[next_buffer])) next_buffer = (next_buffer + 1) % 5;
        current = buffers[next_buffer];
        Sum<kRows, kPanels>(a, weights, begin / Policy::kPerUnit, Units(end), current);
      }
      int level = 0;
      for (; (segment >> level & 1) != 0; ++level) {
        float* left = waiting[level];
        waiting[level] = nullptr;
        if (left == nullptr) continue;
        if (current != nullptr) {
          for (int i = 0; i < kCount; i += kLanes) {
            StoreF32(left + i, LoadF32(left + i) + LoadF32(current + i));
          }
        }
        current = left;
      }
      if (level < 3) waiting[level] = current;
    }
    return current;
  }

  static bool IsWaiting(float* const (&waiting)[4], const float* buffer) {
    return waiting[0] == buffer || waiting[1] == buffer || waiting[2] == buffer;
  }

  template <int kRows, int kPanels>
  static void RunTile(const GemmTask& task, const std::byte* a, const Weights& weights,
                      int64_t first_row, int64_t first_output) {
    alignas(64) float buffers[5][kMaxBuffer];
    const float* sums = buffers[0];
    if (task.segmented) {
      sums = SumSegments<kRows, kPanels>(a, weights, task.in_features, buffers);
    } else {
      Sum<kRows, kPanels>(a, weights, 0, Units(task.in_features), buffers[0]);
    }
    const int64_t left = task.num_outputs - first_output;
    const int count =
        left < kPanels * kPanelOutputs ? static_cast<int>(left) : kPanels * kPanelOutputs;
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < count; i += kLanes) {
        const int lanes = count - i < kLanes ? count - i : kLanes;
        F32x16 y = LoadF32(sums + r * kPanels * kPanelOutputs + i);
        if (task.bias != nullptr) {
          y = y + LoadLanes(DType::kF32, task.bias, first_output + i, lanes);
        }
        StoreLanes(task.output_dtype, task.output,
                   (first_row + r) * task.output_stride + first_output + i, y, lanes);
      }
    }
  }

  template <int kRows>
  static void RunTileOfRows(int rows, int panels, const GemmTask& task, const std::byte* a,
                            const Weights& weights, int64_t first_row, int64_t first_output) {
    if (rows == kRows) {
      constexpr int kPanels = PanelsOf(kRows);
      const auto run = panels == kPanels ? RunTile<kRows, kPanels> : RunTile<kRows, 1>;
      run(task, a, weights, first_row, first_output);
      return;
    }
    if constexpr (kRows < kMaxRows) {
      RunTileOfRows<kRows + 1>(rows, panels, task, a, weights, first_row, first_output);
    }
  }

  static void Run(const GemmTask& task) {
    const RowTiles tiles = MakeRowTiles(task.num_rows, kMaxRows);
    const int64_t units = Units(task.in_features);
    const int64_t panel_bytes = units * kPanelUnitBytes;
    const int num_panels = static_cast<int>((task.num_outputs + kPanelOutputs - 1) / kPanelOutputs);
    const int step = tiles.count == 1 ? PanelsOf(static_cast<int>(task.num_rows)) : 1;
    for (int panel = 0; panel < num_panels;) {
      const int taken = num_panels - panel >= step ? step : 1;
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        RunTileOfRows<1>(tiles.rows(tile), taken, task,
                         task.activations + tiles.begin(tile) * units * Policy::kRowUnitBytes,
                         Weights{task.panels + panel * panel_bytes, panel_bytes,
                                 static_cast<int>(tile), static_cast<int>(tiles.count)},
                         tiles.begin(tile), int64_t{panel} * kPanelOutputs);
      }
      panel += taken;
    }
  }

  template <typename Element>
  static void PackRows(const void* input, int64_t in_features, int rows, std::byte* packed) {
    const Element* from = static_cast<const Element*>(input);
    PackUnits<Policy, Element>(
        rows, in_features, [&](int r) { return from + r * in_features; }, packed);
  }

  template <typename Element>
  static constexpr GemmKernels Table() {
    return GemmKernels{.panel_outputs = kPanelOutputs,
                       .k_per_unit = Policy::kPerUnit,
                       .weight_unit_bytes = Policy::kWeightVectorBytes / kLanes,
                       .activation_unit_bytes = Policy::kRowUnitBytes,
                       .max_tile_rows = kMaxRows,
                       .panel_step = PanelsOf(1),
                       .pack_rows = PackRows<Element>,
                       .run = Run};
  }
};

}  // namespace
}  // namespace tandem
