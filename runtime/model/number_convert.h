// Conversions between the number formats of checkpoints, element by element, round to nearest even.

#ifndef TANDEM_RUNTIME_MODEL_NUMBER_CONVERT_H_
#define TANDEM_RUNTIME_MODEL_NUMBER_CONVERT_H_

#include <bit>
#include <cstdint>
#include <span>

#include "runtime/config/tensor_type.h"

namespace tandem {

constexpr float FloatFromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

constexpr uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN.
  }
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

float FloatFromF16(uint16_t bits);
uint16_t F16FromFloat(float value);

// `bytes` (unaligned, of `type`) as floats into `out`, which has as many elements.
void ConvertToF32(TensorType type, std::span<const uint8_t> bytes, std::span<float> out);
void ConvertToBf16(TensorType type, std::span<const uint8_t> bytes, std::span<uint16_t> out);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_NUMBER_CONVERT_H_
