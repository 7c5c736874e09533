// Tiles of GEMM over any policy: segments, their tree, bias, rounding (kernels/api/linear.h).
// Included once per instruction set.

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/micro_kernel.h"

namespace tandem {
namespace {

// kPanelVectors vectors of outputs a panel; at most kMaxRows rows a tile; kSums sums fit the
// registers.
template <typename Policy, int kPanelVectors, int kMaxRows, int kSums>
struct Gemm {
  static constexpr int kPanelOutputs = kPanelVectors * kLanes;
  static constexpr int kPanelUnitBytes = kPanelVectors * Policy::kWeightVectorBytes;
  // In flight when each tile of rows has its weights from memory.
  static constexpr int kPrefetchBytes = 4096;
  static_assert(kMaxRows <= kSums);

  // Vectors of outputs that so many rows take at once: some panels, or a part of one. Independent
  // sums hide the latency of one, and streams of weights that of memory.
  static constexpr int VectorsOf(int rows) {
    for (const int panels : {4, 2, 1}) {
      if (rows * panels * kPanelVectors <= kSums) return panels * kPanelVectors;
    }
    return 1;
  }

  // A task of one row takes so many panels at once.
  static constexpr int kPanelStep = VectorsOf(1) > kPanelVectors ? VectorsOf(1) / kPanelVectors : 1;

  static int64_t Units(int64_t in_features) {
    return (in_features + Policy::kPerUnit - 1) / Policy::kPerUnit;
  }

  // Where pass `pass` of `num_passes`, which use the same panels one after the other, finds its
  // weights, and what it fetches into the cache meanwhile. One pass alone: its own panels, some way
  // ahead. Of several each a part of the next panel, evenly, so that reading memory takes no time
  // of its own.
  struct Weights {
    const std::byte* panels;
    int64_t panel_bytes;
    int first_vector;
    int64_t pass, num_passes;

    const std::byte* vector(int v) const {
      const int at = first_vector + v;
      return panels + at / kPanelVectors * panel_bytes +
             at % kPanelVectors * Policy::kWeightVectorBytes;
    }
    template <int kVectors>
    int64_t prefetch_stride() const {
      const int64_t streams = num_passes * kVectors;
      return num_passes == 1 ? kPanelUnitBytes : (kPanelUnitBytes + streams - 1) / streams;
    }
    template <int kVectors>
    const std::byte* prefetch(int v) const {
      if (num_passes == 1) return vector(v) + kPrefetchBytes * kPanelVectors / kVectors;
      return panels + panel_bytes + (pass * kVectors + v) * panel_bytes / (num_passes * kVectors);
    }
  };

  // sums [kRows, kVectors] of units [begin, end).
  template <int kRows, int kVectors>
  static void Sum(const std::byte* a, const Weights& weights, int64_t begin, int64_t end,
                  float* sums) {
    F32x16 acc[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = F32x16{};
    }
    const int64_t prefetch_stride = weights.template prefetch_stride<kVectors>();
    const std::byte* w[kVectors];
    const std::byte* prefetch[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      w[v] = weights.vector(v) + begin * kPanelUnitBytes;
      prefetch[v] = weights.template prefetch<kVectors>(v) + begin * prefetch_stride;
    }
    constexpr int64_t kUnitStride = kRows * Policy::kRowUnitBytes;
    AccumulateUnits<Policy, kRows, kVectors>(a + begin * kUnitStride, kUnitStride,
                                             Policy::kRowUnitBytes, w, kPanelUnitBytes, prefetch,
                                             prefetch_stride, end - begin, acc);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        StoreF32(sums + (r * kVectors + v) * kLanes, acc[r][v]);
      }
    }
  }

  // The pairwise tree over segments, as they come: a binary counter whose digits are sums.
  // Returns the buffer that holds the result.
  template <int kRows, int kVectors>
  static const float* SumSegments(const std::byte* a, const Weights& weights, int64_t in_features,
                                  float (*buffers)[kSums * kLanes]) {
    constexpr int kCount = kRows * kVectors * kLanes;
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
        Sum<kRows, kVectors>(a, weights, begin / Policy::kPerUnit, Units(end), current);
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

  // kRows rows times kVectors vectors of outputs.
  template <int kRows, int kVectors>
  static void RunTile(const GemmTask& task, const std::byte* a, const Weights& weights,
                      int64_t first_row, int64_t first_output) {
    alignas(64) float buffers[5][kSums * kLanes];
    const float* sums = buffers[0];
    if (task.segmented) {
      sums = SumSegments<kRows, kVectors>(a, weights, task.in_features, buffers);
    } else {
      Sum<kRows, kVectors>(a, weights, 0, Units(task.in_features), buffers[0]);
    }
    const int64_t left = task.num_outputs - first_output;
    const int count = left < kVectors * kLanes ? static_cast<int>(left) : kVectors * kLanes;
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < count; i += kLanes) {
        const int lanes = count - i < kLanes ? count - i : kLanes;
        F32x16 y = LoadF32(sums + r * kVectors * kLanes + i);
        if (task.bias != nullptr) {
          y = y + LoadLanes(DType::kF32, task.bias, first_output + i, lanes);
        }
        StoreLanes(task.output_dtype, task.output,
                   (first_row + r) * task.output_stride + first_output + i, y, lanes);
      }
    }
  }

  // A tile of rows times some whole panels, `vectors` vectors of them.
  template <int kRows>
  static void RunTileOfRows(const GemmTask& task, const RowTiles& tiles, int64_t tile,
                            const std::byte* panels, int vectors, int64_t first_output) {
    if (tiles.rows(tile) != kRows) {
      if constexpr (kRows < kMaxRows) {
        RunTileOfRows<kRows + 1>(task, tiles, tile, panels, vectors, first_output);
      }
      return;
    }
    constexpr int kMost = VectorsOf(kRows);
    constexpr int kFewer = kMost < kPanelVectors ? kMost : kPanelVectors;
    const auto run = vectors == kMost ? RunTile<kRows, kMost> : RunTile<kRows, kFewer>;
    const int step = vectors == kMost ? kMost : kFewer;
    const int64_t units = Units(task.in_features);
    const std::byte* a = task.activations + tiles.begin(tile) * units * Policy::kRowUnitBytes;
    for (int v = 0; v < vectors; v += step) {
      const Weights weights{.panels = panels,
                            .panel_bytes = units * kPanelUnitBytes,
                            .first_vector = v,
                            .pass = (tile * vectors + v) / step,
                            .num_passes = tiles.count * vectors / step};
      run(task, a, weights, tiles.begin(tile), first_output + v * kLanes);
    }
  }

  static void Run(const GemmTask& task) {
    const RowTiles tiles = MakeRowTiles(task.num_rows, kMaxRows);
    const int64_t panel_bytes = Units(task.in_features) * kPanelUnitBytes;
    const int num_panels = static_cast<int>((task.num_outputs + kPanelOutputs - 1) / kPanelOutputs);
    const int most = VectorsOf(static_cast<int>(tiles.rows(0))) / kPanelVectors;
    const int step = tiles.count == 1 && most > 1 ? most : 1;
    for (int panel = 0; panel < num_panels;) {
      const int taken = num_panels - panel >= step ? step : 1;
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        RunTileOfRows<1>(task, tiles, tile, task.panels + panel * panel_bytes,
                         taken * kPanelVectors, int64_t{panel} * kPanelOutputs);
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
    constexpr DType kDType = sizeof(Element) == 4 ? DType::kF32 : DType::kBF16;
    return GemmKernels{.weight_type = WeightTypeOf(kDType),
                       .compute_dtype = kDType,
                       .panel_outputs = kPanelOutputs,
                       .k_per_unit = Policy::kPerUnit,
                       .weight_unit_bytes = Policy::kWeightVectorBytes / kLanes,
                       .activation_unit_bytes = Policy::kRowUnitBytes,
                       .max_tile_rows = kMaxRows,
                       .panel_step = kPanelStep,
                       .pack_rows = PackRows<Element>,
                       .run = Run};
  }
};

}  // namespace
}  // namespace tandem
