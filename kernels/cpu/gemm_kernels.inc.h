// Tiles of GEMM over any policy: segments, their tree, scales, bias, rounding
// (kernels/api/linear.h). Included once per instruction set.

#include "kernels/cpu/int8_rows.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/micro_kernel.h"

namespace tandem {
namespace {

// kPanelVectors vectors of outputs a panel; at most kMaxRows rows a tile; kSums sums fit the
// registers. Passes that read the same weights take them in chunks of kChunkUnits units, which the
// innermost cache holds; 0: panel by panel.
template <typename Policy, int kPanelVectors, int kMaxRows, int kSums, int64_t kChunkUnits>
struct Gemm {
  static constexpr int kPanelOutputs = kPanelVectors * kLanes;
  static constexpr int kPanelUnitBytes = kPanelVectors * Policy::kWeightVectorBytes;
  // Behind a panel's units: the scale of each output. Before a tile's units: the runs of each row.
  static constexpr int kPanelScaleBytes = Policy::kIsInteger ? kPanelOutputs * 4 : 0;
  static constexpr int kRowRunBytes =
      Policy::kIsInteger ? kNumLinearSegments * static_cast<int>(sizeof(RowRun)) : 0;
  // In flight when a pass has its weights to itself, from memory.
  static constexpr int kPrefetchBytes = 4096;
  static constexpr int kBandTiles = 4;  // At most; with a panel they make a Band.
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
  // A single tile of several panels has at most kSums.
  static constexpr int kBandFloats =
      (kBandTiles * kMaxRows * kPanelVectors > kSums ? kBandTiles * kMaxRows * kPanelVectors
                                                     : kSums) *
      kLanes;

  static int64_t Units(int64_t in_features) {
    return (in_features + Policy::kPerUnit - 1) / Policy::kPerUnit;
  }

  static int64_t PanelBytes(int64_t in_features) {
    return Units(in_features) * kPanelUnitBytes + kPanelScaleBytes;
  }
  static int64_t RowBytes(int64_t in_features) {
    return Units(in_features) * Policy::kRowUnitBytes + kRowRunBytes;
  }

  // A few tiles of rows times some whole panels: what shares weights while they are near.
  struct Band {
    const GemmTask& task;
    const RowTiles& tiles;
    int64_t first_tile, end_tile;
    const std::byte* panels;
    int vectors;  // of outputs

    int64_t rows() const { return tiles.begin(end_tile) - tiles.begin(first_tile); }
    int64_t panel_bytes() const { return PanelBytes(task.in_features); }
    int sums_stride() const { return vectors * kLanes; }
    const std::byte* activations(int64_t tile) const {
      return task.activations + tiles.begin(tile) * RowBytes(task.in_features);
    }
  };

  // Where pass `pass` of `num_passes`, which read the same chunk one after the other, finds its
  // weights, and what it fetches into the cache meanwhile. One pass alone: its own panels, some way
  // ahead. Of several each a part of the chunk that follows in memory, evenly, so that reading
  // memory takes no time of its own.
  struct Weights {
    const std::byte* chunk;  // of the first panel
    int64_t units;
    int64_t panel_bytes;
    int first_vector;
    int64_t pass, num_passes;

    const std::byte* vector(int v) const {
      const int at = first_vector + v;
      return chunk + at / kPanelVectors * panel_bytes +
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
      const int64_t bytes = units * kPanelUnitBytes;
      return chunk + bytes + (pass * kVectors + v) * bytes / (num_passes * kVectors);
    }
  };

  // A part of a sum over units, or all of it.
  struct Part {
    int64_t segment;
    int64_t first, units;
    bool begins, ends;
  };

  // Adds the products with a chunk to sums [kRows, sums_stride], or begins them.
  template <int kRows, int kVectors>
  static void Pass(const std::byte* a, const RowRun* runs, const Weights& weights, const Part& part,
                   float* sums, int64_t sums_stride) {
    F32x16 acc[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      F32x16 first{};
      if constexpr (Policy::kIsInteger) {
        first = Splat(std::bit_cast<float>(runs[r * kNumLinearSegments].first_sum));
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = first;
    }
    if (!part.begins) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = LoadF32(sums + r * sums_stride + v * kLanes);
      }
    }
    const std::byte* w[kVectors];
    const std::byte* prefetch[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      w[v] = weights.vector(v);
      prefetch[v] = weights.template prefetch<kVectors>(v);
    }
    AccumulateUnits<Policy, kRows, kVectors>(
        a, kRows * Policy::kRowUnitBytes, Policy::kRowUnitBytes, w, kPanelUnitBytes, prefetch,
        weights.template prefetch_stride<kVectors>(), weights.units, acc);
    if constexpr (Policy::kIsInteger) {
      if (part.ends) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) {
            acc[r][v] = ToFloats(SignedOf(BitsOf(acc[r][v]))) * runs[r * kNumLinearSegments].scale;
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) StoreF32(sums + r * sums_stride + v * kLanes, acc[r][v]);
    }
  }

  // A part of a tile's sums, with all vectors of its band.
  template <int kRows>
  static void PassesOfTile(const Band& band, int64_t tile, const Part& part, float* sums) {
    if (band.tiles.rows(tile) != kRows) {
      if constexpr (kRows < kMaxRows) {
        PassesOfTile<kRows + 1>(band, tile, part, sums);
      }
      return;
    }
    constexpr int kMost = VectorsOf(kRows);
    constexpr int kFewer = kMost < kPanelVectors ? kMost : kPanelVectors;
    const bool takes_most = band.vectors == kMost;
    const auto pass = takes_most ? Pass<kRows, kMost> : Pass<kRows, kFewer>;
    const int step = takes_most ? kMost : kFewer;
    const int passes = band.vectors / step;
    const std::byte* const packed = band.activations(tile);
    const RowRun* const runs = reinterpret_cast<const RowRun*>(packed) + part.segment;
    const std::byte* const a = packed + kRows * (kRowRunBytes + part.first * Policy::kRowUnitBytes);
    sums += (band.tiles.begin(tile) - band.tiles.begin(band.first_tile)) * band.sums_stride();
    for (int i = 0; i < passes; ++i) {
      const Weights weights{.chunk = band.panels + part.first * kPanelUnitBytes,
                            .units = part.units,
                            .panel_bytes = band.panel_bytes(),
                            .first_vector = i * step,
                            .pass = (tile - band.first_tile) * passes + i,
                            .num_passes = (band.end_tile - band.first_tile) * passes};
      pass(a, runs, weights, part, sums + i * step * kLanes, band.sums_stride());
    }
  }

  // sums [rows of the band, vectors] of units [begin, end), a segment of K or all of it.
  static void Sum(const Band& band, int64_t segment, int64_t begin, int64_t end, float* sums) {
    const int rows = band.tiles.rows(band.first_tile);
    const bool is_one_pass =
        band.end_tile - band.first_tile == 1 && band.vectors <= VectorsOf(rows);
    const int64_t chunk = kChunkUnits == 0 || is_one_pass ? end - begin : kChunkUnits;
    for (int64_t first = begin; first < end; first += chunk) {
      const int64_t units = end - first < chunk ? end - first : chunk;
      const Part part{.segment = segment,
                      .first = first,
                      .units = units,
                      .begins = first == begin,
                      .ends = first + units == end};
      for (int64_t tile = band.first_tile; tile < band.end_tile; ++tile) {
        PassesOfTile<1>(band, tile, part, sums);
      }
    }
  }

  // The pairwise tree over segments, as they come: a binary counter whose digits are sums.
  // Returns the buffer that holds the result.
  static const float* SumSegments(const Band& band, float (*buffers)[kBandFloats]) {
    const int64_t count = band.rows() * band.sums_stride();
    static_assert(kNumLinearSegments == 8);
    float* waiting[3] = {};  // by level; null: nothing there
    float* current = nullptr;
    int next_buffer = 0;  // of four: at most one a level, and the current one
    for (int segment = 0; segment < kNumLinearSegments; ++segment) {
      const int64_t begin = LinearSegmentBegin(band.task.in_features, segment);
      const int64_t end = LinearSegmentBegin(band.task.in_features, segment + 1);
      current = nullptr;
      if (begin < end) {
        while (IsWaiting(waiting, buffers[next_buffer])) next_buffer = (next_buffer + 1) % 4;
        current = buffers[next_buffer];
        Sum(band, segment, begin / Policy::kPerUnit, Units(end), current);
      }
      int level = 0;
      for (; (segment >> level & 1) != 0; ++level) {
        float* left = waiting[level];
        waiting[level] = nullptr;
        if (left == nullptr) continue;
        if (current != nullptr) {
          for (int64_t i = 0; i < count; i += kLanes) {
            StoreF32(left + i, LoadF32(left + i) + LoadF32(current + i));
          }
        }
        current = left;
      }
      if (level < 3) waiting[level] = current;
    }
    return current;
  }

  static bool IsWaiting(float* const (&waiting)[3], const float* buffer) {
    return waiting[0] == buffer || waiting[1] == buffer || waiting[2] == buffer;
  }

  static void RunBand(const Band& band, int64_t first_output) {
    const GemmTask& task = band.task;
    alignas(64) float buffers[4][kBandFloats];
    const float* sums = buffers[0];
    if (task.segmented) {
      sums = SumSegments(band, buffers);
    } else {
      Sum(band, /*segment=*/0, 0, Units(task.in_features), buffers[0]);
    }
    const int64_t left = task.num_outputs - first_output;
    const int count = left < band.sums_stride() ? static_cast<int>(left) : band.sums_stride();
    const int64_t first_row = band.tiles.begin(band.first_tile);
    for (int64_t r = 0; r < band.rows(); ++r) {
      for (int i = 0; i < count; i += kLanes) {
        const int lanes = count - i < kLanes ? count - i : kLanes;
        F32x16 y = LoadF32(sums + r * band.sums_stride() + i);
        if constexpr (Policy::kIsInteger) {
          const std::byte* const panel = band.panels + i / kPanelOutputs * band.panel_bytes();
          const std::byte* const scales = panel + Units(task.in_features) * kPanelUnitBytes;
          y = y * LoadF32(reinterpret_cast<const float*>(scales) + i % kPanelOutputs);
        }
        if (task.bias != nullptr) {
          y = y + LoadLanes(DType::kF32, task.bias, first_output + i, lanes);
        }
        StoreLanes(task.output_dtype, task.output,
                   (first_row + r) * task.output_stride + first_output + i, y, lanes);
      }
    }
  }

  static void Run(const GemmTask& task) {
    const RowTiles tiles = MakeRowTiles(task.num_rows, kMaxRows);
    const int64_t panel_bytes = PanelBytes(task.in_features);
    const int num_panels = static_cast<int>((task.num_outputs + kPanelOutputs - 1) / kPanelOutputs);
    const int most = VectorsOf(static_cast<int>(tiles.rows(0))) / kPanelVectors;
    const int step = tiles.count == 1 && most > 1 ? most : 1;
    for (int panel = 0; panel < num_panels;) {
      const int taken = num_panels - panel >= step ? step : 1;
      for (int64_t tile = 0; tile < tiles.count; tile += kBandTiles) {
        RunBand({.task = task,
                 .tiles = tiles,
                 .first_tile = tile,
                 .end_tile = tile + kBandTiles < tiles.count ? tile + kBandTiles : tiles.count,
                 .panels = task.panels + panel * panel_bytes,
                 .vectors = taken * kPanelVectors},
                int64_t{panel} * kPanelOutputs);
      }
      panel += taken;
    }
  }

  template <typename Element>
  static void PackRows(const void* input, int64_t in_features, [[maybe_unused]] bool segmented,
                       int rows, std::byte* packed) {
    const Element* from = static_cast<const Element*>(input);
    if constexpr (Policy::kIsInteger) {
      PackInt8Tile<Policy>(from, in_features, segmented, rows, packed);
    } else {
      PackUnits<Policy, Element>(
          rows, in_features, [&](int r) { return from + r * in_features; }, packed);
    }
  }

  template <typename Element>
  static constexpr GemmKernels Table() {
    constexpr DType kDType = sizeof(Element) == 4 ? DType::kF32 : DType::kBF16;
    return GemmKernels{.weight_type = Policy::kIsInteger ? WeightType::kInt8 : WeightTypeOf(kDType),
                       .compute_dtype = kDType,
                       .panel_outputs = kPanelOutputs,
                       .k_per_unit = Policy::kPerUnit,
                       .weight_unit_bytes = Policy::kWeightVectorBytes / kLanes,
                       .panel_scale_bytes = kPanelScaleBytes,
                       .activation_unit_bytes = Policy::kRowUnitBytes,
                       .row_run_bytes = kRowRunBytes,
                       .max_tile_rows = kMaxRows,
                       .panel_step = kPanelStep,
                       .pack_rows = PackRows<Element>,
                       .run = Run};
  }
};

}  // namespace
}  // namespace tandem
