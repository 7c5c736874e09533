// Numbers in 8 bits: x is about q · scale, q from -127 to 127, with one scale for a run of numbers:
// its largest magnitude divided by 127, of small groups the next power of two from there on
// (docs/numerics.md). Rounded to nearest, ties to even. kernels/cpu has the same over 16 lanes.

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

// The scale of a small group, in a byte: the exponent, as a float has it, of the least power of two
// that is no less than Int8Scale. So q · scale is a bf16 number. 0, a scale of zero, below 2^-126;
// 255, an infinity, if a number of the group is not finite.
[[gnu::always_inline]] constexpr uint8_t Int8GroupScale(float absmax) {
  const uint32_t bits = std::bit_cast<uint32_t>(Int8Scale(absmax));
  const uint32_t exponent = bits >> 23;
  const bool is_above = (bits & 0x7FFFFFu) != 0;
  if (exponent == 0 || exponent == 255) return static_cast<uint8_t>(exponent);
  return static_cast<uint8_t>(exponent + (is_above ? 1 : 0));
}
[[gnu::always_inline]] constexpr float Int8GroupScaleToFloat(uint8_t scale) {
  return std::bit_cast<float>(uint32_t{scale} << 23);
}

// q. What is no number gives -127, and makes the scale, and so all products with it, no number.
[[gnu::always_inline]] constexpr int32_t ToInt8(float x, float scale) {
  if (scale == 0.0f) return 0;
  float y = x / scale;
  y = y > -kInt8Max ? y : -kInt8Max;
  y = y < kInt8Max ? y : kInt8Max;
  return static_cast<int32_t>((y + kRoundFloat) - kRoundFloat);
}

// q of a number of such a group; 0 beside an infinity, so that all products are no numbers.
[[gnu::always_inline]] constexpr int32_t ToInt8OfGroup(float x, uint8_t scale) {
  return scale == 255 ? 0 : ToInt8(x, Int8GroupScaleToFloat(scale));
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_INT8_H_
