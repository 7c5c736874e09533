// What one instruction set provides: functions over ranges of an operation, which cpu_backend.cc
// shares among threads. One table per instruction set, picked once at start.

#ifndef TANDEM_KERNELS_CPU_KERNEL_TABLE_H_
#define TANDEM_KERNELS_CPU_KERNEL_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/support/host_args.h"

namespace tandem {

// Each computes rows (or elements) [begin, end).
struct RowKernels {
  void (*rms_norm)(const HostRmsNormArgs& args, int64_t begin, int64_t end);
  void (*layer_norm)(const HostLayerNormArgs& args, int64_t begin, int64_t end);
  void (*add)(const HostAddArgs& args, int64_t begin, int64_t end);
  void (*soft_cap)(const HostSoftCapArgs& args, int64_t begin, int64_t end);
  void (*embedding)(const HostEmbeddingArgs& args, int64_t begin, int64_t end);
};

// Inputs of some rows that are not made 8 bits (LinearSpec::outlier_threshold).
struct OutlierLists {
  float threshold = 0;        // 0: there are no lists.
  int32_t* counts = nullptr;  // [rows, kNumLinearSegments]; without segments all are the first's
  // [rows, K] numbers of inputs: those of a segment ascend from where the segment begins.
  int32_t* inputs = nullptr;

  static constexpr size_t RowBytes(int64_t in_features) {
    return (kNumLinearSegments + static_cast<size_t>(in_features)) * sizeof(int32_t);
  }
  OutlierLists From(int64_t row, int64_t in_features) const {
    if (threshold == 0) return {};
    return {threshold, counts + row * kNumLinearSegments, inputs + row * in_features};
  }
};

// What one tile of activations has of a segment, or all of it where there are no segments, to be
// packed. Rows that have scales have one for it.
struct PackTask {
  const void* input;    // [rows, in_features], compute_dtype
  int64_t in_features;  // K
  bool segmented;
  int segment;    // below NumSegments()
  int64_t group;  // as in GemmTask
  int rows;
  std::byte* packed;      // the tile
  OutlierLists outliers;  // its lists: the segment's part is filled

  static constexpr int NumSegments(bool segmented) { return segmented ? kNumLinearSegments : 1; }
  int64_t begin() const { return segmented ? LinearSegmentBegin(in_features, segment) : 0; }
  int64_t end() const {
    return segmented ? LinearSegmentBegin(in_features, segment + 1) : in_features;
  }
};

// Some rows times some panels of packed weights. A panel holds panel_outputs outputs for all k:
// [unit][output] in units of k_per_unit inputs, and behind them scales of the outputs, if weights
// have them; where groups of inputs have their own, each group's before its units. Activations are
// packed in tiles of at most max_tile_rows rows: scales of the rows, if they have them, sums of
// groups, and [unit][row].
struct GemmTask {
  const std::byte* activations;  // of the first tile
  int64_t num_rows;              // split into tiles by MakeRowTiles
  const std::byte* panels;       // of the first panel
  int64_t in_features;
  int64_t group;  // Inputs of a group; 0: no groups.
  bool segmented;
  const float* bias;  // of the first panel's first output, or null
  void* output;       // at the first row and the first panel's first output
  int64_t output_stride;
  int64_t num_outputs;  // of all panels of the task; the last panel may be partial
  DType output_dtype;
  bool adds_to_output = false;  // LinearArgs
  // LinearSpec. Of a gated layer half of each panel are gates, the other half their ups; `bias` is
  // that of the first gate.
  std::optional<ActivationFunction> activation = {};
  bool gated = false;
  const float* up_bias = nullptr;
  OutlierLists outliers = {};       // of the first row
  const void* input = nullptr;      // what the lists number: [num_rows, in_features]
  DType input_dtype = DType::kF32;  // of `input`
};

struct GemmKernels {
  WeightType weight_type;
  DType compute_dtype;
  int panel_outputs;
  int k_per_unit;
  size_t weight_unit_bytes;      // one unit of one output in a panel
  size_t panel_scale_bytes;      // scales of a panel's outputs
  size_t panel_group_bytes;      // what a panel's outputs have for each group of inputs
  size_t activation_unit_bytes;  // one unit of one row in a tile,
  int activation_block_units;    // of which there is a multiple of so many
  size_t row_run_bytes;          // scales of one row in a tile
  size_t row_group_bytes;        // what one row has for each group
  int max_tile_rows;
  int panel_step;  // few rows take so many panels at once: tasks are best multiples of it
  void (*pack_rows)(const PackTask& task);
  void (*run)(const GemmTask& task);
  // What so many rows and more are multiplied by, where none has outliers: the same weights and
  // bits in less time. Null: this, too.
  const GemmKernels* many_rows = nullptr;
  int64_t many_rows_from = 0;

  const GemmKernels& ForRows(int64_t num_rows) const {
    return many_rows != nullptr && num_rows >= many_rows_from ? *many_rows : *this;
  }
  // What a row of so many inputs, which have so many groups, takes in a tile.
  int64_t RowBytes(int64_t in_features, int64_t groups) const;
};

// Running softmax of some rows over one segment, or merged.
struct AttentionPartial {
  float max;
  float sum;
};

// Rows (query tokens × heads of a KV head's group) that read the same K and V, of some KV heads.
struct AttentionTask {
  const HostKvLayerView* kv;
  const int32_t* blocks;  // block table row of the sequence
  int first_kv_head;
  int num_kv_heads;            // the first's and those behind it
  int num_rows;                // of one KV head; at most AttentionKernels::max_rows
  const void* const* queries;  // [num_kv_heads, num_rows] pointers to [D]
  const int64_t* num_visible;  // [num_rows] ascending; positions before these are seen,
  int64_t window;              // but only the last so many of them; 0: all
  float softmax_scale;
  float score_cap;  // 0: none
};

// Rows of all KV heads of a task, at most; those of one are no more than max_rows.
inline constexpr int kMaxAttentionTaskRows = 32;

struct AttentionKernels {
  KvType kv_type;
  int max_rows;
  const char* tile_format;  // KvTileFormat::id
  size_t (*tile_bytes)(const KvTileShape& shape);
  void (*rotary_kv_write)(const HostRotaryKvWriteArgs& args, int64_t begin, int64_t end);
  // The segment that begins at `segment_begin`; rows that see none of it are left with max −∞.
  // partials [num_kv_heads, num_rows], accumulators [num_kv_heads, num_rows, stride of D].
  void (*segment)(const AttentionTask& task, int64_t segment_begin, AttentionPartial* partials,
                  float* accumulators);
  // left = left merged with right.
  void (*merge)(int head_dim, AttentionPartial right, const float* right_accumulator,
                AttentionPartial* left, float* left_accumulator);
  void (*finish)(int head_dim, AttentionPartial partial, const float* accumulator, void* output);
};

// D rounded up to whole vectors.
constexpr int AttentionAccumulatorStride(int head_dim) { return (head_dim + 15) / 16 * 16; }

// Kernels of each type of weights with each type that it is computed in, in any order.
using GemmTable = std::array<GemmKernels, 6>;

// By what is computed in: one for each type that it is computed with.
using F32AttentionTable = std::array<AttentionKernels, 5>;
using Bf16AttentionTable = std::array<AttentionKernels, 4>;

struct KernelTable {
  const char* isa;
  RowKernels rows;
  GemmTable gemm;
  F32AttentionTable f32_attention;
  Bf16AttentionTable bf16_attention;

  // Null: there are none.
  const GemmKernels* FindGemm(WeightType weight_type, DType compute_dtype) const;
  // `kernels` instead of those of their types.
  void Replace(const GemmKernels& kernels);
  // This table, of another name, with these kernels instead of those of their types.
  KernelTable With(const char* name, std::span<const GemmKernels> kernels) const;
};

// Rows of tile `index` when num_rows rows make equal tiles of at most max_tile_rows.
struct RowTiles {
  int64_t count;
  int64_t rows_each;
  int64_t rows_extra;  // the first so many tiles have one row more
  int rows(int64_t index) const { return static_cast<int>(rows_each + (index < rows_extra)); }
  int64_t begin(int64_t index) const {
    return index * rows_each + (index < rows_extra ? index : rows_extra);
  }
};

[[gnu::always_inline]] inline RowTiles MakeRowTiles(int64_t num_rows, int max_tile_rows) {
  const int64_t count = (num_rows + max_tile_rows - 1) / max_tile_rows;
  return RowTiles{count, num_rows / count, num_rows % count};
}

// An instruction set that this build has kernels for.
struct Isa {
  const char* name;
  const char* needs;                // What the processor must have, in words.
  const KernelTable* (*kernels)();  // Null if this machine lacks something.
};

// Best first, as "auto" tries them, to "generic", plain C++ for the baseline of the architecture,
// which no machine lacks. Behind it what is to be asked for by name. Packed weights and KV tiles
// are the same for all; all but "amx" and "generic" give the same bits (docs/numerics.md).
std::span<const Isa> KnownIsas();
const KernelTable& GenericKernels();

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_KERNEL_TABLE_H_
