#include "kernels/cpu/cpu_linear.h"

#include <algorithm>
#include <bit>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/support/int4.h"
#include "kernels/support/int8.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

// Rows whose packed activations stay in the second-level cache while panels stream past them.
constexpr int64_t kRowBlock = 192;
// Work below this (multiplications) is not worth waking a thread for, nor packing so many inputs:
// about a nanosecond each, as the lines that they are packed into are in the other threads' caches.
constexpr int64_t kMinSharedWork = 64 * 1024;
constexpr int64_t kMinSharedPacking = 16 * 1024;
// A thread takes panels of about so many bytes at once when rows are few.
constexpr int64_t kItemBytes = 256 * 1024;
// Items per thread, so that a thread that loses its core delays little.
constexpr int64_t kItemsPerThread = 4;
constexpr size_t kListAlignment = 64;

class CpuLinearOp final : public LinearOp {
 public:
  CpuLinearOp(const GemmKernels& gemm, const LinearSpec& spec, const std::byte* packed)
      : LinearOp(spec), gemm_(gemm), packed_(packed) {}
  const GemmKernels& gemm() const { return gemm_; }
  // Those for so many rows. Only gemm() knows outliers.
  const GemmKernels& KernelsFor(int64_t num_rows) const {
    return spec().outlier_threshold == 0 ? gemm_.ForRows(num_rows) : gemm_;
  }
  const std::byte* packed() const { return packed_; }

 private:
  const GemmKernels& gemm_;
  const std::byte* const packed_;
};

int64_t Units(const GemmKernels& gemm, int64_t in_features) {
  return CeilDiv<int64_t>(in_features, gemm.k_per_unit);
}

int64_t PanelUnitBytes(const GemmKernels& gemm) {
  return gemm.panel_outputs * static_cast<int64_t>(gemm.weight_unit_bytes);
}

int64_t PanelScalesAt(const GemmKernels& gemm, const LinearSpec& spec) {
  return Units(gemm, spec.in_features) * PanelUnitBytes(gemm) +
         spec.groups() * static_cast<int64_t>(gemm.panel_group_bytes);
}

int64_t PanelBytes(const GemmKernels& gemm, const LinearSpec& spec) {
  return PanelScalesAt(gemm, spec) + static_cast<int64_t>(gemm.panel_scale_bytes);
}

int64_t NumPanels(const GemmKernels& gemm, const LinearSpec& spec) {
  return CeilDiv<int64_t>(spec.out_features, gemm.panel_outputs);
}

template <typename To, typename From>
To Convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, float>) {
    return ToFloat(x);
  } else {
    return ToBfloat16(x);
  }
}

// Weights of one output: element k at data[k · stride]. Null: another part's, or past the last.
template <typename From>
struct Column {
  const From* data = nullptr;
  int64_t stride = 1;
  const float* scales = nullptr;  // Weights that come in 4 bits have these.
  const uint8_t* zeros = nullptr;
};

template <typename From, typename To>
void PackColumns(const GemmKernels& gemm, const LinearSpec& spec,
                 const std::vector<Column<From>>& columns, std::byte* bytes) {
  const int per_unit = gemm.k_per_unit;
  To* const panel = reinterpret_cast<To*>(bytes);
  for (int64_t k = 0; k < spec.in_features; ++k) {
    To* unit = panel + (k / per_unit * gemm.panel_outputs) * per_unit + k % per_unit;
    for (int i = 0; i < gemm.panel_outputs; ++i) {
      if (columns[i].data != nullptr) {
        unit[i * per_unit] = Convert<To>(columns[i].data[k * columns[i].stride]);
      }
    }
  }
}

// In 8 bits, 128 too high, with the scales behind (kernels/support/int8.h).
template <typename From>
void PackInt8Columns(const GemmKernels& gemm, const LinearSpec& spec,
                     const std::vector<Column<From>>& columns, std::byte* panel) {
  auto* const scales = reinterpret_cast<float*>(panel + PanelScalesAt(gemm, spec));
  for (int i = 0; i < gemm.panel_outputs; ++i) {
    const Column<From>& column = columns[i];
    if (column.data == nullptr) continue;
    uint32_t absmax = 0;
    for (int64_t k = 0; k < spec.in_features; ++k) {
      absmax = std::max(absmax, MagnitudeBits(Convert<float>(column.data[k * column.stride])));
    }
    scales[i] = Int8Scale(std::bit_cast<float>(absmax));
    for (int64_t k = 0; k < spec.in_features; ++k) {
      const int64_t at =
          (k / gemm.k_per_unit * gemm.panel_outputs + i) * gemm.k_per_unit + k % gemm.k_per_unit;
      panel[at] = static_cast<std::byte>(
          128 + ToInt8(Convert<float>(column.data[k * column.stride]), scales[i]));
    }
  }
}

// In 4 bits, each group behind its scales and zeros. A part that has scales is in 4 bits already.
template <typename From>
void PackInt4Columns(const GemmKernels& gemm, const LinearSpec& spec,
                     const std::vector<Column<From>>& columns, std::byte* panel) {
  for (int64_t first = 0; first < spec.in_features; first += spec.group) {
    const int64_t count = std::min(spec.group, spec.in_features - first);
    auto* const scales = reinterpret_cast<Half*>(panel);
    auto* const zeros = reinterpret_cast<uint8_t*>(scales + gemm.panel_outputs);
    std::byte* const units = panel + gemm.panel_group_bytes;
    for (int i = 0; i < gemm.panel_outputs; ++i) {
      const Column<From>& column = columns[i];
      if (column.data == nullptr) continue;
      const From* const from = column.data + first * column.stride;
      uint8_t q[kMaxInt4Group] = {};  // Past the last input, too.
      if constexpr (std::is_same_v<From, uint8_t>) {
        const int64_t group = first / spec.group;
        scales[i] = ToHalf(column.scales[group]);
        zeros[i] = column.zeros[group];
        std::copy_n(from, count, q);
      } else {
        const auto number = [&](int64_t k) { return Convert<float>(from[k * column.stride]); };
        Int4Range range;
        for (int64_t k = 0; k < count; ++k) range.Add(number(k));
        const Int4Group group = Int4GroupOf(range);
        scales[i] = group.scale;
        zeros[i] = static_cast<uint8_t>(group.zero);
        for (int64_t k = 0; k < count; ++k) q[k] = static_cast<uint8_t>(ToInt4(number(k), group));
      }
      for (int64_t unit = 0; unit < Units(gemm, count); ++unit) {
        std::byte* const to = units + unit * PanelUnitBytes(gemm) + i * 4;
        const uint8_t* const eight = q + unit * 8;
        for (int k = 0; k < 4; ++k) to[k] = static_cast<std::byte>(eight[k] | eight[k + 4] << 4);
      }
    }
    panel = units + Units(gemm, count) * PanelUnitBytes(gemm);
  }
}

// Which output of the layer is the i-th of a panel; N and more: none. Of a gated layer half of the
// panel are gates, the other half their ups.
int64_t OutputAt(const GemmKernels& gemm, const LinearSpec& spec, int64_t panel, int i) {
  if (!spec.gated) return panel * gemm.panel_outputs + i;
  const int half = gemm.panel_outputs / 2;
  const int64_t column = panel * half + i % half;
  if (column >= spec.columns()) return spec.out_features;
  return i < half ? column : spec.columns() + column;
}

// All outputs of one part; `first` is its first output in the layer.
template <typename From>
void PackPart(const GemmKernels& gemm, const LinearSpec& spec, const WeightPart& part,
              int64_t first, std::byte* packed) {
  auto* pack_columns = PackInt4Columns<From>;
  if constexpr (!std::is_same_v<From, uint8_t>) {
    constexpr decltype(pack_columns) kPackColumns[] = {
        PackColumns<From, float>, PackColumns<From, Bfloat16>, PackInt8Columns<From>,
        PackInt4Columns<From>};
    pack_columns = kPackColumns[static_cast<int>(spec.weight_type)];
  }
  const From* data = static_cast<const From*>(part.data);
  const int64_t panel_bytes = PanelBytes(gemm, spec);
  std::vector<Column<From>> columns(gemm.panel_outputs);
  const int64_t last = first + part.out_features;
  for (int64_t panel = 0; panel < NumPanels(gemm, spec); ++panel) {
    bool is_in_panel = false;
    for (int i = 0; i < gemm.panel_outputs; ++i) {
      const int64_t n = OutputAt(gemm, spec, panel, i);
      columns[i] = {};
      if (n < first || n >= last) continue;
      is_in_panel = true;
      columns[i] = spec.layout == WeightLayout::kOutIn
                       ? Column<From>{data + (n - first) * spec.in_features, 1}
                       : Column<From>{data + (n - first), part.out_features};
      if (!spec.scaled) continue;
      columns[i].scales = part.scales.data() + (n - first) * spec.groups();
      columns[i].zeros = part.zeros.data() + (n - first) * spec.groups();
    }
    if (is_in_panel) pack_columns(gemm, spec, columns, packed + panel * panel_bytes);
  }
}

void PackActivations(const GemmKernels& gemm, const LinearSpec& spec, const std::byte* input,
                     const RowTiles& tiles, int64_t tile, int segment, std::byte* packed,
                     const OutlierLists& outliers) {
  const int64_t row = tiles.begin(tile);
  gemm.pack_rows(
      {.input = input + static_cast<size_t>(row * spec.in_features) * SizeOf(spec.compute_dtype),
       .in_features = spec.in_features,
       .segmented = spec.segmented,
       .segment = segment,
       .group = spec.group,
       .rows = tiles.rows(tile),
       .packed = packed + row * gemm.RowBytes(spec.in_features, spec.groups()),
       .outliers = outliers.From(row, spec.in_features)});
}

// Whether one of `rows` rows has outliers.
bool HasAny(const OutlierLists& outliers, int64_t rows, bool segmented) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int segment = 0; segment < PackTask::NumSegments(segmented); ++segment) {
      if (outliers.counts[r * kNumLinearSegments + segment] != 0) return true;
    }
  }
  return false;
}

}  // namespace

PackedFormat CpuPackedFormat(const GemmKernels& gemm, const LinearSpec& spec) {
  std::string id = absl::StrFormat("cpu.1.n%d.k%d.%s", gemm.panel_outputs, gemm.k_per_unit,
                                   NameOf(spec.weight_type));
  if (spec.group != 0) absl::StrAppend(&id, ".g", spec.group);
  if (spec.gated) absl::StrAppend(&id, ".gated");
  return {.id = std::move(id),
          .size_bytes = static_cast<size_t>(NumPanels(gemm, spec) * PanelBytes(gemm, spec))};
}

void CpuPack(const GemmKernels& gemm, const LinearSpec& spec, std::span<const WeightPart> parts,
             std::byte* packed) {
  // Outputs past N and what a last unit lacks stay zero.
  if (spec.out_features % gemm.panel_outputs != 0) {
    const int64_t panel_bytes = PanelBytes(gemm, spec);
    std::fill_n(packed + spec.out_features / gemm.panel_outputs * panel_bytes, panel_bytes,
                std::byte{0});
  }
  if (spec.in_features % gemm.k_per_unit != 0) {
    std::fill_n(packed, CpuPackedFormat(gemm, spec).size_bytes, std::byte{0});
  }
  int64_t first = 0;
  for (const WeightPart& part : parts) {
    auto* const pack_part = spec.scaled                 ? PackPart<uint8_t>
                            : part.dtype == DType::kF32 ? PackPart<float>
                                                        : PackPart<Bfloat16>;
    pack_part(gemm, spec, part, first, packed);
    first += part.out_features;
  }
}

std::unique_ptr<LinearOp> CpuPrepare(const GemmKernels& gemm, const LinearSpec& spec,
                                     const std::byte* packed) {
  return std::make_unique<CpuLinearOp>(gemm, spec, packed);
}

absl::Status CpuLinear(const HostLinearArgs& args, ThreadPool* pool, Scratch* scratch) {
  const auto* op = dynamic_cast<const CpuLinearOp*>(args.op);
  TANDEM_CHECK(op != nullptr) << "a linear layer prepared by another backend";
  const LinearSpec& spec = op->spec();
  const int64_t panel_bytes = PanelBytes(op->gemm(), spec);
  const int64_t num_panels = NumPanels(op->gemm(), spec);
  const int64_t block_rows = std::min(args.num_rows, kRowBlock);
  const int64_t row_bytes =
      std::max(op->gemm().RowBytes(spec.in_features, spec.groups()),
               op->KernelsFor(block_rows).RowBytes(spec.in_features, spec.groups()));
  const bool looks_for_outliers = spec.outlier_threshold != 0;
  const size_t list_bytes = looks_for_outliers ? OutlierLists::RowBytes(spec.in_features) : 0;
  const size_t activation_bytes =
      RoundUp(static_cast<size_t>(block_rows * row_bytes), kListAlignment);
  TANDEM_ASSIGN_OR_RETURN(
      std::byte* const activations,
      scratch->Get(activation_bytes + static_cast<size_t>(block_rows) * list_bytes));
  OutlierLists outliers;
  if (looks_for_outliers) {
    auto* const counts = reinterpret_cast<int32_t*>(activations + activation_bytes);
    outliers = {spec.outlier_threshold, counts, counts + block_rows * kNumLinearSegments};
  }
  for (int64_t first_row = 0; first_row < args.num_rows; first_row += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, args.num_rows - first_row);
    const GemmKernels& gemm = op->KernelsFor(rows);
    const RowTiles tiles = MakeRowTiles(rows, gemm.max_tile_rows);
    const auto* input =
        static_cast<const std::byte*>(args.input) +
        static_cast<size_t>(first_row * spec.in_features) * SizeOf(spec.compute_dtype);
    auto* output = static_cast<std::byte*>(args.output) +
                   static_cast<size_t>(first_row * spec.columns()) * SizeOf(spec.output_dtype);
    const bool shared = rows * spec.in_features * spec.out_features >= kMinSharedWork;
    // Segment by segment: the layer before has written columns side by side by one thread, which is
    // likely to pack them, too.
    const auto pack = [&](int64_t item, int) {
      PackActivations(gemm, spec, input, tiles, item % tiles.count,
                      static_cast<int>(item / tiles.count), activations, outliers);
    };
    const int64_t pack_items = tiles.count * PackTask::NumSegments(spec.segmented);
    if (shared && rows * spec.in_features >= kMinSharedPacking) {
      pool->ParallelFor(pack_items, pack);
    } else {
      for (int64_t item = 0; item < pack_items; ++item) pack(item, 0);
    }
    const bool has_outliers = looks_for_outliers && HasAny(outliers, rows, spec.segmented);
    const int64_t fair = num_panels / (kItemsPerThread * pool->num_threads());
    const int64_t wanted = kItemBytes / panel_bytes;
    const int64_t step = gemm.panel_step;
    const int64_t item_panels =
        shared ? std::max(RoundUp(std::min(fair, wanted), step), step) : num_panels;
    pool->ParallelFor(CeilDiv(num_panels, item_panels), [&](int64_t item, int) {
      const int64_t first_panel = item * item_panels;
      const int64_t first_output = first_panel * gemm.panel_outputs;
      const int64_t first_column = first_output / (spec.gated ? 2 : 1);
      const float* const bias = args.bias == nullptr ? nullptr : args.bias + first_column;
      gemm.run(
          GemmTask{.activations = activations,
                   .num_rows = rows,
                   .panels = op->packed() + first_panel * panel_bytes,
                   .in_features = spec.in_features,
                   .group = spec.group,
                   .segmented = spec.segmented,
                   .bias = bias,
                   .output = output + static_cast<size_t>(first_column) * SizeOf(spec.output_dtype),
                   .output_stride = spec.columns(),
                   .num_outputs =
                       std::min(item_panels * gemm.panel_outputs, spec.out_features - first_output),
                   .output_dtype = spec.output_dtype,
                   .adds_to_output = args.adds_to_output,
                   .activation = spec.activation,
                   .gated = spec.gated,
                   .up_bias = bias == nullptr ? nullptr : bias + spec.columns(),
                   .outliers = has_outliers ? outliers : OutlierLists{},
                   .input = input,
                   .input_dtype = spec.compute_dtype});
    });
  }
  return absl::OkStatus();
}

}  // namespace tandem
