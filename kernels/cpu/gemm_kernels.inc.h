// Tiles of GEMM over any policy: segments, their tree, scales, bias, rounding
// (kernels/api/linear.h). Included once per instruction set.

#include <array>
#include <bit>

#include "kernels/cpu/int8_rows.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/linear_sums.h"
#include "kernels/cpu/micro_kernel.h"

namespace tandem {
namespace {

// Units that an innermost cache of 32 KiB holds well: 16 KiB of a panel of two vectors.
constexpr int64_t kCachedUnits = 16 * 1024 / (2 * 64);

// kPanelVectors vectors of outputs a panel; at most kMaxRows rows a tile; kSums sums fit the
// registers. Passes that read the same weights take them in chunks of kChunkUnits units, which the
// innermost cache holds; 0: panel by panel.
template <typename Policy, int kPanelVectors, int kMaxRows, int kSums, int64_t kChunkUnits>
struct Gemm {
  static constexpr int kPanelOutputs = kPanelVectors * kLanes;
  static_assert(kPanelVectors == 2);  // One of gates and one of ups, if gated.
  static constexpr int kPanelUnitBytes = kPanelVectors * Policy::kWeightVectorBytes;
  static constexpr bool kHasGroups = Policy::kHasGroups;
  // Behind a panel's units: the scale of each output. Before those of a group: scales in two bytes
  // each, then zeros in one. Before a tile's units: the runs of each row, and sums of groups.
  static constexpr int kPanelScaleBytes = Policy::kIsInteger && !kHasGroups ? kPanelOutputs * 4 : 0;
  static constexpr int kPanelGroupBytes = kHasGroups ? kPanelOutputs * 3 : 0;
  static constexpr int kRowGroupBytes = kHasGroups ? 4 : 0;
  static constexpr int kRowRunBytes =
      Policy::kIsInteger ? kNumLinearSegments * static_cast<int>(sizeof(RowRun)) : 0;
  static constexpr int kBandTiles = 4;  // At most; with a panel they make a Band.
  static_assert(kMaxRows <= kSums);
  static_assert(!kHasGroups || kChunkUnits * Policy::kPerUnit % kMaxInt4Group == 0);

  // Vectors of outputs that so many rows take at once: some panels, or a part of one. Independent
  // sums hide the latency of one, and streams of weights that of memory.
  static constexpr int VectorsOf(int rows) {
    for (const int panels : {4, 2, 1}) {
      if (SumsFit(kSums, rows, panels * kPanelVectors)) return panels * kPanelVectors;
    }
    return 1;
  }

  // How a pass of so many rows fetches weights, as measured with AVX-512 (kernels/measurements.md):
  // into which cache, and how far ahead where it has them to itself, from memory.
  static constexpr bool kHasManySums = kSums >= 24;
  static constexpr bool IsMiddling(int rows) { return rows >= 7 && rows < kMaxRows; }
  static constexpr int CacheOf(int rows) {
    if (kChunkUnits != 0) return 1;
    return kHasGroups || (kHasManySums && (rows <= 3 || IsMiddling(rows))) ? 2 : 1;
  }
  static constexpr int BytesAhead(int rows) {
    if (!kHasManySums) return 4096;
    if (kHasGroups) return rows >= 2 && rows <= 4 ? 8192 : 4096;
    return IsMiddling(rows) ? 6144 : 4096;
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

  // Groups that so many units begin.
  static int64_t Groups(const GemmTask& task, int64_t units) {
    if constexpr (!kHasGroups) return 0;
    return (units * Policy::kPerUnit + task.group - 1) / task.group;
  }
  static int64_t UnitsBytes(const GemmTask& task, int64_t units) {
    return units * kPanelUnitBytes + Groups(task, units) * kPanelGroupBytes;
  }
  static int64_t PanelBytes(const GemmTask& task) {
    return UnitsBytes(task, Units(task.in_features)) + kPanelScaleBytes;
  }
  // What a row has in a tile before its units.
  static int64_t RowHeadBytes(const GemmTask& task) {
    return kRowRunBytes + Groups(task, Units(task.in_features)) * kRowGroupBytes;
  }
  static int64_t RowBytes(const GemmTask& task) {
    return RowHeadBytes(task) + Units(task.in_features) * Policy::kRowUnitBytes;
  }

  // A few tiles of rows times some whole panels: what shares weights while they are near.
  struct Band {
    const GemmTask& task;
    const RowTiles& tiles;
    int64_t first_tile, end_tile;
    const std::byte* panels;
    int vectors;  // of outputs

    int64_t rows() const { return tiles.begin(end_tile) - tiles.begin(first_tile); }
    int64_t panel_bytes() const { return PanelBytes(task); }
    int sums_stride() const { return vectors * kLanes; }
    const std::byte* activations(int64_t tile) const {
      return task.activations + tiles.begin(tile) * RowBytes(task);
    }
  };

  // Where pass `pass` of `num_passes`, which read the same chunk one after the other, finds its
  // weights, and what it fetches into the cache meanwhile. One pass alone: its own panels, some way
  // ahead. Of several each a part of the chunk that follows in memory, evenly, so that reading
  // memory takes no time of its own.
  struct Weights {
    const std::byte* chunk;  // of the first panel
    int64_t units;
    int64_t bytes;  // of the units of a panel, and of their groups
    int64_t panel_bytes;
    int first_vector;
    int64_t pass, num_passes;

    // Where the panel of vector `v` of kVectors begins, and which vector of that it is. Passes of
    // whole panels begin with one.
    template <int kVectors>
    const std::byte* panel(int v) const {
      if constexpr (kVectors % kPanelVectors == 0) {
        return chunk + (first_vector / kPanelVectors + v / kPanelVectors) * panel_bytes;
      }
      return chunk + (first_vector + v) / kPanelVectors * panel_bytes;
    }
    template <int kVectors>
    int of_panel(int v) const {
      return (kVectors % kPanelVectors == 0 ? v : first_vector + v) % kPanelVectors;
    }
    template <int kVectors>
    const std::byte* vector(int v) const {
      return panel<kVectors>(v) + kPanelGroupBytes +
             of_panel<kVectors>(v) * Policy::kWeightVectorBytes;
    }
    // A pass of several panels is alone.
    template <int kVectors>
    bool is_alone() const {
      return kVectors > kPanelVectors || num_passes == 1;
    }
    template <int kVectors>
    int64_t prefetch_stride() const {
      const int64_t streams = num_passes * kVectors * units;
      return is_alone<kVectors>() ? kPanelUnitBytes : (bytes + streams - 1) / streams;
    }
    template <int kRows, int kVectors>
    static constexpr int kAhead = BytesAhead(kRows) * kPanelVectors / kVectors;
    template <int kRows, int kVectors>
    const std::byte* prefetch(int v) const {
      if (is_alone<kVectors>()) return vector<kVectors>(v) + kAhead<kRows, kVectors>;
      return chunk + bytes + (pass * kVectors + v) * bytes / (num_passes * kVectors);
    }
    template <int kRows, int kVectors>
    [[gnu::always_inline]] void Find(const std::byte* (&w)[kVectors],
                                     const std::byte* (&fetched)[kVectors]) const {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        w[v] = vector<kVectors>(v);
        fetched[v] = prefetch<kRows, kVectors>(v);
      }
    }
  };

  // A part of a sum over units, or all of it.
  struct Part {
    int64_t segment;
    int64_t first, units;
    bool begins, ends;
  };

  // What a part of a tile's rows is: units, and what stands before them.
  struct Rows {
    const std::byte* units;
    const RowRun* runs;         // of the part's segment; the next row's kNumLinearSegments on
    const int32_t* group_sums;  // [group][row]
  };

  // Adds the products with a chunk, group by group, to sums [kRows, sums_stride], or begins them.
  // Sums of a group are whole numbers in registers; those of all stay near.
  template <int kRows, int kVectors>
  static void PassOfGroups(Rows rows, int64_t group_units, const Weights& weights, const Part& part,
                           float* sums, int64_t sums_stride) {
    const auto for_all = [&](auto change) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          float* const sum = sums + r * sums_stride + v * kLanes;
          StoreF32(sum, change(r, v, sum));
        }
      }
    };
    if (part.begins) for_all([](int, int, const float*) { return Splat(0.0f); });
    const bool is_alone = weights.template is_alone<kVectors>();
    const int64_t prefetch_stride = weights.template prefetch_stride<kVectors>();
    const std::byte* panels[kVectors];
    const std::byte* w[kVectors];
    const std::byte* prefetch[kVectors];
    weights.template Find<kRows, kVectors>(w, prefetch);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) panels[v] = weights.template panel<kVectors>(v);
    for (int64_t left = weights.units; left > 0; left -= group_units) {
      const int64_t units = left < group_units ? left : group_units;
      F32x16 acc[kRows][kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const int at = weights.template of_panel<kVectors>(v);
        const U32x16 zeros =
            LoadU8(reinterpret_cast<const uint8_t*>(panels[v]) + kPanelOutputs * 2 + at * kLanes);
        if (is_alone) {
          __builtin_prefetch(panels[v] + at * 64 + Weights::template kAhead<kRows, kVectors>,
                             /*rw=*/0, /*locality=*/4 - CacheOf(kRows));
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const U32x16 sum = BitsOf(Splat(std::bit_cast<float>(rows.group_sums[r])));
          acc[r][v] = FloatsOf(UnsignedOf(PairProducts(zeros, sum)));
        }
      }
      AccumulateUnits<Policy, kRows, kVectors, CacheOf(kRows)>(
          rows.units, kRows * Policy::kRowUnitBytes, Policy::kRowUnitBytes, w, kPanelUnitBytes,
          prefetch, prefetch_stride, units, acc);
      F32x16 scales[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        scales[v] = WidenHalf(LoadU16(reinterpret_cast<const uint16_t*>(panels[v]) +
                                      weights.template of_panel<kVectors>(v) * kLanes));
      }
      for_all([&](int r, int v, const float* sum) __attribute__((always_inline)) {
        return LoadF32(sum) + ToFloats(SignedOf(BitsOf(acc[r][v]))) * scales[v];
      });
      const int64_t bytes = units * kPanelUnitBytes + kPanelGroupBytes;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        panels[v] += bytes;
        w[v] += bytes;
        prefetch[v] += is_alone ? bytes : units * prefetch_stride;
      }
      rows.units += units * kRows * Policy::kRowUnitBytes;
      rows.group_sums += kRows;
    }
    if (part.ends) {
      for_all([&](int r, int, const float* sum) __attribute__((always_inline)) {
        return LoadF32(sum) * rows.runs[r * kNumLinearSegments].scale;
      });
    }
  }

  // Adds the products with a chunk to sums [kRows, sums_stride], or begins them.
  template <int kRows, int kVectors>
  static void Pass(const Rows& rows, [[maybe_unused]] int64_t group_units, const Weights& weights,
                   const Part& part, float* sums, int64_t sums_stride) {
    if constexpr (kHasGroups) {
      PassOfGroups<kRows, kVectors>(rows, group_units, weights, part, sums, sums_stride);
      return;
    }
    const RowRun* const runs = rows.runs;
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
    weights.template Find<kRows, kVectors>(w, prefetch);
    AccumulateUnits<Policy, kRows, kVectors, CacheOf(kRows)>(
        rows.units, kRows * Policy::kRowUnitBytes, Policy::kRowUnitBytes, w, kPanelUnitBytes,
        prefetch, weights.template prefetch_stride<kVectors>(), weights.units, acc);
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
    const auto* const runs = reinterpret_cast<const RowRun*>(packed);
    const auto* const group_sums =
        reinterpret_cast<const int32_t*>(packed + int64_t{kRows} * kRowRunBytes);
    const Rows rows{
        .units = packed + kRows * (RowHeadBytes(band.task) + part.first * Policy::kRowUnitBytes),
        .runs = runs + part.segment,
        .group_sums = group_sums + Groups(band.task, part.first) * kRows};
    const int64_t group_units = band.task.group / Policy::kPerUnit;
    sums += (band.tiles.begin(tile) - band.tiles.begin(band.first_tile)) * band.sums_stride();
    for (int i = 0; i < passes; ++i) {
      const Weights weights{.chunk = band.panels + UnitsBytes(band.task, part.first),
                            .units = part.units,
                            .bytes = UnitsBytes(band.task, part.units),
                            .panel_bytes = band.panel_bytes(),
                            .first_vector = i * step,
                            .pass = (tile - band.first_tile) * passes + i,
                            .num_passes = (band.end_tile - band.first_tile) * passes};
      pass(rows, group_units, weights, part, sums + i * step * kLanes, band.sums_stride());
    }
  }

  // To sums [rows of the band, vectors] of a segment, which begins with input `begin`.
  static void AddOutliersOfBand(const Band& band, int64_t segment, int64_t begin, float* sums) {
    const GemmTask& task = band.task;
    const int64_t first_row = band.tiles.begin(band.first_tile);
    for (int64_t r = first_row; r < first_row + band.rows(); ++r) {
      const int32_t count = task.outliers.counts[r * kNumLinearSegments + segment];
      if (count == 0) continue;
      const int32_t* const inputs = task.outliers.inputs + r * task.in_features + begin;
      const auto* const row = static_cast<const std::byte*>(task.input) +
                              r * task.in_features * (task.input_dtype == DType::kF32 ? 4 : 2);
      for (int v = 0; v < band.vectors; v += kPanelVectors) {
        AddOutliers<kPanelVectors>(inputs, count, row, task.input_dtype,
                                   band.panels + v / kPanelVectors * band.panel_bytes(),
                                   sums + (r - first_row) * band.sums_stride() + v * kLanes);
      }
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
    if constexpr (Policy::kIsInteger && !kHasGroups) {
      if (band.task.outliers.threshold != 0) {
        AddOutliersOfBand(band, segment, begin * Policy::kPerUnit, sums);
      }
    }
  }

  static void RunBand(const Band& band, int64_t first_output) {
    const GemmTask& task = band.task;
    alignas(64) float buffers[4][kBandFloats];
    const float* sums = buffers[0];
    if (task.segmented) {
      sums = SumSegments(task.in_features, band.rows() * band.sums_stride(), buffers,
                         [&](int segment, int64_t begin, int64_t end, float* to) {
                           Sum(band, segment, begin / Policy::kPerUnit, Units(end), to);
                         });
    } else {
      Sum(band, /*segment=*/0, 0, Units(task.in_features), buffers[0]);
    }
    const SumsOfRows rows{.sums = sums,
                          .stride = band.sums_stride(),
                          .first_row = band.tiles.begin(band.first_tile),
                          .num_rows = band.rows(),
                          .first_output = first_output};
    const auto scales_of = [&](int i) __attribute__((always_inline)) {
      const std::byte* const panel = band.panels + i / kPanelOutputs * band.panel_bytes();
      const std::byte* const scales = panel + Units(task.in_features) * kPanelUnitBytes;
      return LoadF32(reinterpret_cast<const float*>(scales) + i % kPanelOutputs);
    };
    FinishRows<kPanelScaleBytes != 0>(task, rows, scales_of);
  }

  static void Run(const GemmTask& task) {
    const RowTiles tiles = MakeRowTiles(task.num_rows, kMaxRows);
    const int64_t panel_bytes = PanelBytes(task);
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
  static void PackRows(const PackTask& task) {
    if constexpr (Policy::kIsInteger) {
      PackInt8Rows<Policy, Element>(task);
    } else {
      const Element* const from = static_cast<const Element*>(task.input) + task.begin();
      PackUnits<Policy, Element>(
          task.rows, task.end() - task.begin(), [&](int r) { return from + r * task.in_features; },
          task.packed + task.begin() / Policy::kPerUnit * task.rows * Policy::kRowUnitBytes);
    }
  }

  template <typename Element>
  static constexpr GemmKernels Table() {
    constexpr DType kDType = sizeof(Element) == 4 ? DType::kF32 : DType::kBF16;
    return GemmKernels{.weight_type = kHasGroups           ? WeightType::kInt4
                                      : Policy::kIsInteger ? WeightType::kInt8
                                                           : WeightTypeOf(kDType),
                       .compute_dtype = kDType,
                       .panel_outputs = kPanelOutputs,
                       .k_per_unit = Policy::kPerUnit,
                       .weight_unit_bytes = Policy::kWeightVectorBytes / kLanes,
                       .panel_scale_bytes = kPanelScaleBytes,
                       .panel_group_bytes = kPanelGroupBytes,
                       .activation_unit_bytes = Policy::kRowUnitBytes,
                       .activation_block_units = 1,
                       .row_run_bytes = kRowRunBytes,
                       .row_group_bytes = kRowGroupBytes,
                       .max_tile_rows = kMaxRows,
                       .panel_step = kPanelStep,
                       .pack_rows = PackRows<Element>,
                       .run = Run};
  }
};

// At most so many rows a tile, and so many sums in registers.
struct TileSize {
  int rows;
  int sums;
};

// Kernels of 8 bits, by Int8Policy, and of 4.
template <typename Int8Policy, TileSize kInt8, TileSize kInt4, int64_t kChunkUnits>
constexpr std::array<GemmKernels, 4> IntegerKernels() {
  using OfInt8 = Gemm<Int8Policy, 2, kInt8.rows, kInt8.sums, kChunkUnits>;
  using OfInt4 = Gemm<Int4Policy, 2, kInt4.rows, kInt4.sums, kChunkUnits>;
  return {OfInt8::template Table<float>(), OfInt8::template Table<uint16_t>(),
          OfInt4::template Table<float>(), OfInt4::template Table<uint16_t>()};
}

// All kernels of an instruction set without products of four bytes.
template <TileSize kMost, TileSize kInt4, int64_t kChunkUnits>
constexpr GemmTable AllKernels() {
  using OfF32 = Gemm<F32Policy, 2, kMost.rows, kMost.sums, kChunkUnits>;
  using OfBf16 = Gemm<MulAddBf16Policy, 2, kMost.rows, kMost.sums, kChunkUnits>;
  const auto integers = IntegerKernels<PairInt8Policy, kMost, kInt4, kChunkUnits>();
  return {OfF32::template Table<float>(),
          OfBf16::template Table<uint16_t>(),
          integers[0],
          integers[1],
          integers[2],
          integers[3]};
}

}  // namespace
}  // namespace tandem
