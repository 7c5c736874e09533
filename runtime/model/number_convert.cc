#include "runtime/model/number_convert.h"

#include <bit>
#include <cstring>

#include "kernels/api/dtype.h"
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
  return type == TensorType::kBF16 ? ToFloat(Bfloat16{bits}) : FloatFromF16(bits);
}

}  // namespace

float FloatFromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 0x1Fu;
  const uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  if (exponent == 0) {  // Zero or denormal: fraction · 2^-24, exact in float.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t F16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // Rounds to infinity.
  if (magnitude < 0x38800000u) {                        // Denormal in f16: count units of 2^-24.
    const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
    uint32_t whole = static_cast<uint32_t>(units);
    const float rest = units - static_cast<float>(whole);
    if (rest > 0.5f || (rest == 0.5f && (whole & 1u) != 0)) ++whole;
    return static_cast<uint16_t>(sign | whole);
  }
  const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

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
