// The host's half of linear layers: formats and packing.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/api/e4m3.h"
#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/cuda_rows.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/support/int4.h"
#include "kernels/support/int8.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

int64_t NumPanels(const LinearSpec& spec) {
  return CeilDiv<int64_t>(spec.out_features, kPanelOutputs);
}

bool OnTensorCores(const LinearSpec& spec, CudaProducts products) {
  return spec.weight_type == WeightType::kInt8 || spec.weight_type == WeightType::kInt4 ||
         spec.weight_type == WeightType::kFp8 ||
         (spec.weight_type == WeightType::kBF16 && products == CudaProducts::kTensorCores);
}

int64_t NumBlocks(const LinearSpec& spec) {
  return CeilDiv<int64_t>(spec.in_features, BlockInputs(spec.weight_type));
}

// All that is there of a panel, in one place or in a place a block.
int64_t PanelBytes(const LinearSpec& spec, CudaProducts products) {
  if (spec.weight_type == WeightType::kInt4) {
    return NumBlocks(spec) * Int4PanelBytes(static_cast<int>(spec.group));
  }
  if (spec.weight_type == WeightType::kFp8) return NumBlocks(spec) * kFp8PanelBytes;
  if (OnTensorCores(spec, products)) return NumBlocks(spec) * kBlockPanelBytes;
  return CeilDiv<int64_t>(spec.in_features, ChunkInputs(spec.weight_type)) * kPanelOutputs *
         kChunkBytes;
}

int64_t ScaleBytes(const LinearSpec& spec) {
  return spec.weight_type == WeightType::kInt8
             ? NumPanels(spec) * kPanelOutputs * int64_t{sizeof(float)}
             : 0;
}

// As which output the layer's n-th is packed.
int64_t PackedAs(const LinearSpec& spec, CudaProducts products, int64_t n) {
  if (!spec.gated || !OnTensorCores(spec, products)) return n;
  const int64_t column = n % spec.columns();
  return column / kPanelColumns * kPanelOutputs + column % kPanelColumns +
         (n < spec.columns() ? 0 : kPanelColumns);
}

float Read(DType dtype, const void* data, int64_t index) {
  return dtype == DType::kF32 ? static_cast<const float*>(data)[index]
                              : ToFloat(static_cast<const Bfloat16*>(data)[index]);
}

// One output of the checkpoint: input k at data[begin + k · stride].
struct Column {
  DType dtype;
  const void* data;
  int64_t begin;
  int64_t stride;
  float operator[](int64_t k) const { return Read(dtype, data, begin + k * stride); }
};

void PackFloats(const LinearSpec& spec, const Column& column, int64_t n, std::byte* packed) {
  const int inputs = ChunkInputs(spec.weight_type);
  std::byte* const panel = packed + n / kPanelOutputs * PanelBytes(spec, CudaProducts::kFma);
  for (int64_t k = 0; k < spec.in_features; ++k) {
    std::byte* const chunk = panel + (k / inputs * kPanelOutputs + n % kPanelOutputs) * kChunkBytes;
    if (spec.weight_type == WeightType::kF32) {
      reinterpret_cast<float*>(chunk)[k % inputs] = column[k];
    } else {
      reinterpret_cast<Bfloat16*>(chunk)[k % inputs] = ToBfloat16(column[k]);
    }
  }
}

// Where input k of output n is for tensor cores.
template <typename T>
T* InBlocks(const LinearSpec& spec, int64_t n, int64_t k, std::byte* packed) {
  const int64_t at = k * static_cast<int64_t>(sizeof(T));
  const int64_t panel = at / kInputBlockBytes * NumPanels(spec) + n / kPanelOutputs;
  return reinterpret_cast<T*>(
      packed + panel * kBlockPanelBytes +
      BlockByteAt(static_cast<int>(n % kPanelOutputs), static_cast<int>(at % kInputBlockBytes)));
}

void PackTensorFloats(const LinearSpec& spec, const Column& column, int64_t n, std::byte* packed) {
  for (int64_t k = 0; k < spec.in_features; ++k) {
    *InBlocks<Bfloat16>(spec, n, k, packed) = ToBfloat16(column[k]);
  }
}

void PackInt8(const LinearSpec& spec, const Column& column, int64_t n, std::byte* packed) {
  uint32_t absmax = 0;
  for (int64_t k = 0; k < spec.in_features; ++k) {
    absmax = std::max(absmax, MagnitudeBits(column[k]));
  }
  const float scale = Int8Scale(std::bit_cast<float>(absmax));
  std::memcpy(packed + NumPanels(spec) * PanelBytes(spec, CudaProducts::kTensorCores) +
                  n * int64_t{sizeof(float)},
              &scale, sizeof(scale));
  for (int64_t k = 0; k < spec.in_features; ++k) {
    *InBlocks<int8_t>(spec, n, k, packed) = static_cast<int8_t>(ToInt8(column[k], scale));
  }
}

// `column` is the i-th of `part`, and packed as output n of the layer.
void PackInt4(const LinearSpec& spec, const WeightPart& part, int64_t i, const Column& column,
              int64_t n, std::byte* packed) {
  const auto output = static_cast<int>(n % kPanelOutputs);
  for (int64_t g = 0; g < spec.groups(); ++g) {
    const int64_t first = g * spec.group;
    const int64_t end = std::min(first + spec.group, spec.in_features);
    Int4Group group;
    if (spec.scaled) {
      const int64_t at = i * spec.groups() + g;
      group = {.scale = ToHalf(part.scales[at]), .zero = part.zeros[at]};
    } else {
      Int4Range range;
      for (int64_t k = first; k < end; ++k) range.Add(column[k]);
      group = Int4GroupOf(range);
    }
    const int panel_bytes = Int4PanelBytes(static_cast<int>(spec.group));
    std::byte* const panel =
        packed + (first / kInputBlockBytes * NumPanels(spec) + n / kPanelOutputs) * panel_bytes;
    std::byte* const scale = panel + kInt4NumberBytes +
                             first % kInputBlockBytes / spec.group * kInt4ScaleBytes + output * 4;
    std::memcpy(scale, &group.scale.bits, sizeof(group.scale.bits));
    scale[2] = static_cast<std::byte>(group.zero);
    for (int64_t k = first; k < end; ++k) {
      const auto input = static_cast<int>(k % kInputBlockBytes);
      const auto q = spec.scaled ? static_cast<const std::byte*>(part.data)[column.begin + k]
                                 : static_cast<std::byte>(ToInt4(column[k], group));
      panel[Int4ByteAt(output, input)] |= IsUpperInt4(input) ? q << 4 : q;
    }
  }
}

// As PackInt4.
void PackFp8(const LinearSpec& spec, const WeightPart& part, int64_t i, int64_t n,
             std::byte* packed) {
  const auto output = static_cast<int>(n % kPanelOutputs);
  const auto* const numbers = static_cast<const E4m3*>(part.data) + i * spec.in_features;
  const int block_inputs = BlockInputs(spec.weight_type);
  for (int64_t first = 0; first < spec.in_features; first += block_inputs) {
    std::byte* const panel =
        packed + (first / block_inputs * NumPanels(spec) + n / kPanelOutputs) * kFp8PanelBytes;
    float scale = part.scales[i * spec.groups() + first / spec.group];
    // An infinite scale is the largest, of numbers so large that their products overflow: the zeros
    // behind the last input stay zeros.
    const bool infinite = std::isinf(scale);
    if (infinite) scale = std::copysign(std::numeric_limits<float>::max(), scale);
    for (int64_t k = first; k < std::min(first + block_inputs, spec.in_features); ++k) {
      const float number = ToFloat(numbers[k]);
      const bool is_nan = std::isnan(number) || (infinite && number == 0);
      if (is_nan) scale = std::numeric_limits<float>::quiet_NaN();
      const auto largest = static_cast<uint8_t>(numbers[k].bits | 0x7E);
      panel[Fp8ByteAt(output, static_cast<int>(k - first))] =
          std::byte{infinite ? largest : numbers[k].bits};
    }
    std::memcpy(panel + kFp8NumberBytes + output * sizeof(scale), &scale, sizeof(scale));
  }
}

// As many rows take of it as one, but for what is rounded up; by warpgroups they take less.
size_t RowScratchBytes(const LinearSpec& spec, CudaProducts products) {
  constexpr int64_t kRows = 1024;
  const PackedLinear layer = PackedLinearOf(spec, products, /*packed=*/nullptr);
  return CeilDiv<size_t>(CudaLinearScratchBytes(layer, spec, kRows, ProcessorLimits{}), kRows);
}

}  // namespace

PackedFormat CudaPackedFormat(const LinearSpec& spec, CudaProducts products) {
  const bool tensor = OnTensorCores(spec, products);
  const std::string group =
      spec.weight_type == WeightType::kInt4 ? absl::StrCat(".g", spec.group) : "";
  return {.id = absl::StrCat("cuda.3.", NameOf(spec.weight_type), group, tensor ? ".blocks" : "",
                             tensor && spec.gated ? ".gated" : ""),
          .size_bytes =
              static_cast<size_t>(NumPanels(spec) * PanelBytes(spec, products) + ScaleBytes(spec)),
          .row_scratch_bytes = RowScratchBytes(spec, products)};
}

void CudaPack(const LinearSpec& spec, CudaProducts products, std::span<const WeightPart> parts,
              std::byte* packed) {
  std::fill_n(packed, CudaPackedFormat(spec, products).size_bytes, std::byte{0});
  const auto pack = spec.weight_type == WeightType::kInt8 ? PackInt8
                    : OnTensorCores(spec, products)       ? PackTensorFloats
                                                          : PackFloats;
  int64_t n = 0;
  for (const WeightPart& part : parts) {
    for (int64_t i = 0; i < part.out_features; ++i, ++n) {
      const bool out_in = spec.layout == WeightLayout::kOutIn;
      const Column column{part.dtype, part.data, out_in ? i * spec.in_features : i,
                          out_in ? 1 : part.out_features};
      const int64_t as = PackedAs(spec, products, n);
      if (spec.weight_type == WeightType::kInt4) {
        PackInt4(spec, part, i, column, as, packed);
      } else if (spec.weight_type == WeightType::kFp8) {
        PackFp8(spec, part, i, as, packed);
      } else {
        pack(spec, column, as, packed);
      }
    }
  }
}

PackedLinear PackedLinearOf(const LinearSpec& spec, CudaProducts products,
                            const std::byte* packed) {
  const bool int8 = spec.weight_type == WeightType::kInt8;
  const bool tensor = OnTensorCores(spec, products);
  const int64_t panels = NumPanels(spec) * PanelBytes(spec, products);
  return {.in_features = spec.in_features,
          .out_features = spec.out_features,
          .num_chunks = tensor ? NumBlocks(spec)
                               : CeilDiv<int64_t>(spec.in_features, ChunkInputs(spec.weight_type)),
          .segmented = spec.segmented,
          .on_tensor_cores = tensor,
          .weight_type = spec.weight_type,
          .compute_dtype = spec.compute_dtype,
          .output_dtype = spec.activation && !tensor ? DType::kF32 : spec.output_dtype,
          .group = static_cast<uint8_t>(
              spec.weight_type == WeightType::kInt4 ? spec.group : 0),  // Others know theirs.
          .panels = packed,
          .scales = int8 && packed != nullptr ? reinterpret_cast<const float*>(packed + panels)
                                              : nullptr};
}

namespace {
// Outputs that a launch of its own activates.
size_t OutputBytes(const PackedLinear& layer, const LinearSpec& spec, int64_t num_rows) {
  if (!spec.activation || layer.on_tensor_cores) return 0;
  return RoundUp<size_t>(static_cast<size_t>(num_rows * spec.out_features) * sizeof(float), 64);
}

cudaError_t Multiply(const PackedLinear& layer, const HostLinearArgs& args, const NormLaunch* norm,
                     void* scratch, const ProcessorLimits& limits, cudaStream_t stream) {
  if (MultipliesInt8(layer)) return Int8Linear(layer, args, norm, scratch, limits, stream);
  return layer.on_tensor_cores ? Bf16TensorLinear(layer, args, scratch, limits, stream)
                               : FloatLinear(layer, args, scratch, stream);
}
}  // namespace

size_t CudaLinearScratchBytes(const PackedLinear& layer, const LinearSpec& spec, int64_t num_rows,
                              const ProcessorLimits& limits) {
  const size_t outputs = OutputBytes(layer, spec, num_rows);
  if (MultipliesInt8(layer)) return outputs + Int8LinearScratchBytes(layer, num_rows, limits);
  return outputs + (layer.on_tensor_cores ? Bf16TensorScratchBytes(layer, num_rows, limits)
                                          : FloatLinearScratchBytes(layer, num_rows));
}

cudaError_t CudaLinear(const PackedLinear& layer, const HostLinearArgs& args,
                       const NormLaunch* norm, void* scratch, const ProcessorLimits& limits,
                       cudaStream_t stream) {
  const LinearSpec& spec = args.op->spec();
  if (!spec.activation || layer.on_tensor_cores) {
    return Multiply(layer, args, norm, scratch, limits, stream);
  }
  HostLinearArgs inner = args;
  inner.output = scratch;
  void* const rest = static_cast<std::byte*>(scratch) + OutputBytes(layer, spec, args.num_rows);
  const cudaError_t error = Multiply(layer, inner, norm, rest, limits, stream);
  if (error != cudaSuccess) return error;
  const auto* const gate = static_cast<const float*>(scratch);
  return CudaActivate({.gate = gate,
                       .up = spec.gated ? gate + spec.columns() : nullptr,
                       .input_stride = spec.out_features,
                       .output = args.output,
                       .num_rows = args.num_rows,
                       .features = spec.columns(),
                       .function = *spec.activation,
                       .input_dtype = DType::kF32,
                       .output_dtype = spec.output_dtype},
                      stream);
}

}  // namespace tandem
