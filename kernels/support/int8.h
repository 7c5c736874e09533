// Numbers in 8 bits: x is about q · scale, q from -127 to 127, with one scale for a run of numbers:
// its largest magnitude divided by 127. Rounded to nearest, ties to even (docs/numerics.md).
// kernels/cpu has the same over 16 lanes.

#ifndef TANDEM_KERNELS_SUPPORT_INT8_H_
#define TANDEM_KERNELS_SUPPORT_INT8_H_

#include <bit>
#include <cstdint>

#include "kernels/support/vector_math.h"

namespace tandem {

inline constexpr float kInt8Max = 127.0f;
// So many products of two numbers of 8 bits have a sum below 2^31.
inline constexpr int64_t kMaxInt8InFeatures = int64_t{1} << 17;

// The larger of two magnitudes, by their bits: a NaN is above all numbers, and the order of a run
// does not matter.
[[gnu::always_inline]] constexpr uint32_t MagnitudeBits(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
}

// The scale of numbers whose largest magnitude is `absmax`; not finite if one of them is not.
[[gnu::always_inline]] constexpr float Int8Scale(float absmax) { return absmax / kInt8Max; }

// q. What is no number gives -127, and makes the scale, and so all products with it, no number.
[[gnu::always_inline]] constexpr int32_t ToInt8(float x, float scale) {
  if (scale == 0.0f) return 0;
  float y = x / scale;
  y = y > -kInt8Max ? y : -kInt8Max;
  y = y < kInt8Max ? y : kInt8Max;
  return static_cast<int32_t>((y + kRoundFloat) - kRoundFloat);
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_INT8_H_
