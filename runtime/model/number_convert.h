// Conversions between the number formats of checkpoints, element by element, round to nearest even.

#ifndef TANDEM_RUNTIME_MODEL_NUMBER_CONVERT_H_
#define TANDEM_RUNTIME_MODEL_NUMBER_CONVERT_H_

#include <cstdint>
#include <span>

#include "runtime/config/tensor_type.h"

namespace tandem {

// `bytes` (unaligned, of `type`) as floats into `out`, which has as many elements.
void ConvertToF32(TensorType type, std::span<const uint8_t> bytes, std::span<float> out);
void ConvertToBf16(TensorType type, std::span<const uint8_t> bytes, std::span<uint16_t> out);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_NUMBER_CONVERT_H_
