// Elements of arrays of either type, read and written as floats.

#ifndef TANDEM_KERNELS_REFERENCE_NUMBERS_H_
#define TANDEM_KERNELS_REFERENCE_NUMBERS_H_

#include <cstdint>

#include "kernels/api/dtype.h"

namespace tandem {

inline float Load(DType dtype, const void* array, int64_t index) {
  return dtype == DType::kF32 ? static_cast<const float*>(array)[index]
                              : ToFloat(static_cast<const Bfloat16*>(array)[index]);
}

inline void Store(DType dtype, void* array, int64_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(array)[index] = value;
  } else {
    static_cast<Bfloat16*>(array)[index] = ToBfloat16(value);
  }
}

// As it would read back.
inline float Round(DType dtype, float value) {
  return dtype == DType::kF32 ? value : ToFloat(ToBfloat16(value));
}

constexpr bool HasScales(KvType type) { return type == KvType::kInt8 || type == KvType::kInt8G8; }

// What one number of a tile in f32 or bf16 is: the reference keeps those as plain arrays.
constexpr DType ElementType(KvType type) {
  return type == KvType::kF32 ? DType::kF32 : DType::kBF16;
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_REFERENCE_NUMBERS_H_
