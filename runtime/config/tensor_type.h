// Number formats of checkpoint tensors. I32 is no number here: quantised checkpoints keep eight of
// 4 bits in one. F8_E4M3 is none without a scale (runtime/model/float8_matrix.h).

#ifndef TANDEM_RUNTIME_CONFIG_TENSOR_TYPE_H_
#define TANDEM_RUNTIME_CONFIG_TENSOR_TYPE_H_

#include <cstdint>
#include <string_view>

namespace tandem {

enum class TensorType : uint8_t { kF32, kF16, kBF16, kI32, kF8E4M3 };

constexpr int64_t SizeBytes(TensorType type) {
  if (type == TensorType::kF8E4M3) return 1;
  return type == TensorType::kF32 || type == TensorType::kI32 ? 4 : 2;
}

constexpr std::string_view Name(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return "F32";
    case TensorType::kF16:
      return "F16";
    case TensorType::kBF16:
      return "BF16";
    case TensorType::kI32:
      return "I32";
    case TensorType::kF8E4M3:
      return "F8_E4M3";
  }
  return "?";
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_CONFIG_TENSOR_TYPE_H_
