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

bool OnTensorCores(const LinearSpec& spec, CudaProducts products) {
  return spec.weight_type == WeightType::kInt8 ||
         (spec.weight_type == WeightType::kBF16 && products == CudaProducts::kTensorCores);
}

int64_t NumBlocks(const LinearSpec& spec) {
  return CeilDiv<int64_t>(spec.in_features, BlockInputs(spec.weight_type));
}

// All that is there of a panel, in one place or in a place a block.
int64_t PanelBytes(const LinearSpec& spec, CudaProducts products) {
  if (OnTensorCores(spec, products)) return NumBlocks(spec) * kBlockPanelBytes;
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

}  // namespace

PackedFormat CudaPackedFormat(const LinearSpec& spec, CudaProducts products) {
  const bool tensor = OnTensorCores(spec, products);
  return {.id = absl::StrCat("cuda.2.", NameOf(spec.weight_type), tensor ? ".blocks" : ""),
          .size_bytes =
              static_cast<size_t>(NumPanels(spec) * PanelBytes(spec, products) + ScaleBytes(spec))};
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
      pack(spec, column, n, packed);
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
          .output_dtype = spec.output_dtype,
          .panels = packed,
          .scales = int8 ? reinterpret_cast<const float*>(packed + panels) : nullptr};
}

size_t CudaLinearScratchBytes(const PackedLinear& layer, int64_t num_rows) {
  if (layer.weight_type == WeightType::kInt8) return Int8LinearScratchBytes(layer, num_rows);
  return layer.on_tensor_cores ? Bf16TensorScratchBytes(layer, num_rows)
                               : FloatLinearScratchBytes(layer, num_rows);
}

cudaError_t CudaLinear(const PackedLinear& layer, const HostLinearArgs& args, void* scratch,
                       const ProcessorLimits& limits, cudaStream_t stream) {
  if (layer.weight_type == WeightType::kInt8) {
    return Int8Linear(layer, args, scratch, limits, stream);
  }
  return layer.on_tensor_cores ? Bf16TensorLinear(layer, args, scratch, limits, stream)
                               : FloatLinear(layer, args, scratch, stream);
}

}  // namespace tandem
