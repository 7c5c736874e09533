// The host's half of linear layers: formats and packing.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/support/int8.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

int64_t NumPanels(const LinearSpec& spec) {
  return CeilDiv<int64_t>(spec.out_features, kPanelOutputs);
}

// One panel's.
int64_t PanelBytes(const LinearSpec& spec) {
  if (spec.weight_type == WeightType::kInt8) {
    return CeilDiv<int64_t>(spec.in_features, kInt8Step) * kInt8StepBytes;
  }
  return CeilDiv<int64_t>(spec.in_features, ChunkInputs(spec.weight_type)) * kPanelOutputs *
         kChunkBytes;
}

int64_t ScaleBytes(const LinearSpec& spec) {
  return spec.weight_type == WeightType::kInt8 ? spec.out_features * int64_t{sizeof(float)} : 0;
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
  std::byte* const panel = packed + n / kPanelOutputs * PanelBytes(spec);
  for (int64_t k = 0; k < spec.in_features; ++k) {
    std::byte* const chunk = panel + (k / inputs * kPanelOutputs + n % kPanelOutputs) * kChunkBytes;
    if (spec.weight_type == WeightType::kF32) {
      reinterpret_cast<float*>(chunk)[k % inputs] = column[k];
    } else {
      reinterpret_cast<Bfloat16*>(chunk)[k % inputs] = ToBfloat16(column[k]);
    }
  }
}

void PackInt8(const LinearSpec& spec, const Column& column, int64_t n, std::byte* packed) {
  uint32_t absmax = 0;
  for (int64_t k = 0; k < spec.in_features; ++k) {
    absmax = std::max(absmax, MagnitudeBits(column[k]));
  }
  const float scale = Int8Scale(std::bit_cast<float>(absmax));
  std::memcpy(packed + NumPanels(spec) * PanelBytes(spec) + n * int64_t{sizeof(float)}, &scale,
              sizeof(scale));
  std::byte* const panel = packed + n / kPanelOutputs * PanelBytes(spec);
  for (int64_t k = 0; k < spec.in_features; ++k) {
    panel[k / kInt8Step * kInt8StepBytes +
          Int8WeightAt(static_cast<int>(n % kPanelOutputs), static_cast<int>(k % kInt8Step))] =
        static_cast<std::byte>(ToInt8(column[k], scale));
  }
}

}  // namespace

PackedFormat CudaPackedFormat(const LinearSpec& spec) {
  return {.id = absl::StrCat("cuda.1.", NameOf(spec.weight_type)),
          .size_bytes = static_cast<size_t>(NumPanels(spec) * PanelBytes(spec) + ScaleBytes(spec))};
}

void CudaPack(const LinearSpec& spec, std::span<const WeightPart> parts, std::byte* packed) {
  const bool int8 = spec.weight_type == WeightType::kInt8;
  std::fill_n(packed, CudaPackedFormat(spec).size_bytes, std::byte{0});
  int64_t n = 0;
  for (const WeightPart& part : parts) {
    for (int64_t i = 0; i < part.out_features; ++i, ++n) {
      const bool out_in = spec.layout == WeightLayout::kOutIn;
      const Column column{part.dtype, part.data, out_in ? i * spec.in_features : i,
                          out_in ? 1 : part.out_features};
      (int8 ? PackInt8 : PackFloats)(spec, column, n, packed);
    }
  }
}

PackedLinear PackedLinearOf(const LinearSpec& spec, const std::byte* packed) {
  const bool int8 = spec.weight_type == WeightType::kInt8;
  const int64_t panels = NumPanels(spec) * PanelBytes(spec);
  return {.in_features = spec.in_features,
          .out_features = spec.out_features,
          .num_chunks =
              CeilDiv<int64_t>(spec.in_features, int8 ? kInt8Step : ChunkInputs(spec.weight_type)),
          .segmented = spec.segmented,
          .weight_type = spec.weight_type,
          .compute_dtype = spec.compute_dtype,
          .output_dtype = spec.output_dtype,
          .panels = packed,
          .scales = int8 ? reinterpret_cast<const float*>(packed + panels) : nullptr};
}

size_t CudaLinearScratchBytes(const PackedLinear& layer, int64_t num_rows) {
  return layer.weight_type == WeightType::kInt8 ? Int8LinearScratchBytes(layer, num_rows)
                                                : FloatLinearScratchBytes(layer, num_rows);
}

cudaError_t CudaLinear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                       cudaStream_t stream) {
  return layer.weight_type == WeightType::kInt8 ? Int8Linear(layer, args, scratch, stream)
                                                : FloatLinear(layer, args, scratch, stream);
}

}  // namespace tandem
