#include "runtime/model/number_convert.h"

#include <cstring>

#include "kernels/api/dtype.h"
#include "kernels/api/half.h"
#include "runtime/base/check.h"

namespace tandem {
namespace {

float Load(TensorType type, const uint8_t* at) {
  if (type == TensorType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return type == TensorType::kBF16 ? ToFloat(Bfloat16{bits}) : ToFloat(Half{bits});
}

}  // namespace

void ConvertToF32(TensorType type, std::span<const uint8_t> bytes, std::span<float> out) {
  const size_t size = static_cast<size_t>(SizeBytes(type));
  TANDEM_CHECK(bytes.size() == out.size() * size) << bytes.size() << " bytes, " << out.size();
  if (type == TensorType::kF32) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) out[i] = Load(type, bytes.data() + i * size);
}

void ConvertToBf16(TensorType type, std::span<const uint8_t> bytes, std::span<uint16_t> out) {
  const size_t size = static_cast<size_t>(SizeBytes(type));
  TANDEM_CHECK(bytes.size() == out.size() * size) << bytes.size() << " bytes, " << out.size();
  if (type == TensorType::kBF16) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = ToBfloat16(Load(type, bytes.data() + i * size)).bits;
  }
}

}  // namespace tandem
