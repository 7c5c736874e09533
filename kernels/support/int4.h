// Numbers in 4 bits: x is about (q - zero) · scale, q from 0 to 15, with a scale and a zero for a
// group of inputs of an output (docs/numerics.md). Scales are kept in 16 bits, as GPTQ and AWQ have
// them.

#ifndef TANDEM_KERNELS_SUPPORT_INT4_H_
#define TANDEM_KERNELS_SUPPORT_INT4_H_

#include <cstdint>

#include "kernels/api/half.h"
#include "kernels/support/int8.h"
#include "kernels/support/vector_math.h"

namespace tandem {

inline constexpr float kInt4Highest = 15.0f;
// Steps that a group's numbers are apart at most: those at the ends lose no more than half a step,
// as all others do, and steps are smaller for it.
inline constexpr float kInt4Steps = 15.5f;

// The numbers of a group as they come.
struct Int4Range {
  float low = 0.0f, high = 0.0f;
  uint32_t magnitude = 0;  // MagnitudeBits of the largest

  constexpr void Add(float x) {
    low = x < low ? x : low;
    high = x > high ? x : high;
    magnitude = MagnitudeBits(x) > magnitude ? MagnitudeBits(x) : magnitude;
  }
};

struct Int4Group {
  Half scale;
  int32_t zero;  // 0 to 16
};

// q in [0, 15]: x / scale to the nearest, ties to even, and `zero`. What is no number gives 0.
constexpr int32_t ToInt4(float x, const Int4Group& group) {
  const float scale = ToFloat(group.scale);
  if (scale == 0.0f) return group.zero;
  const float lowest = static_cast<float>(-group.zero);
  float y = x / scale;
  y = y > lowest ? y : lowest;
  y = y < lowest + kInt4Highest ? y : lowest + kInt4Highest;
  return static_cast<int32_t>((y + kRoundFloat) - kRoundFloat) + group.zero;
}

// From the lowest number, or 0, to the highest; not finite if one of them is not, or if they are
// further apart than half precision's numbers reach in steps.
constexpr Int4Group Int4GroupOf(const Int4Range& range) {
  if (range.magnitude >= 0x7F800000u) return {.scale = {0x7C00u}, .zero = 0};
  Int4Group group{.scale = ToHalf((range.high - range.low) / kInt4Steps), .zero = 0};
  group.zero = ToInt4(-range.low, group);
  return group;
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_INT4_H_
