// Numbers on which instructions may differ, to try them with: all exponents, so that sums
// underflow, overflow and do neither; denormals; zeros of both signs; infinities and NaNs.

#ifndef TANDEM_KERNELS_PROBE_HOSTILE_NUMBERS_H_
#define TANDEM_KERNELS_PROBE_HOSTILE_NUMBERS_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/api/dtype.h"
#include "runtime/base/random.h"

namespace tandem {

// Finite, of either sign, within 2^8 of 2^(exponent − 127), so a denormal where that is too low;
// now and then a denormal or a zero anyway.
inline float HostileNumber(int exponent, Random* random) {
  const int near = std::clamp(exponent + static_cast<int>(random->Below(17)) - 8, 0, 254);
  const uint32_t field = random->Below(8) == 0 ? 0 : static_cast<uint32_t>(near);
  const uint32_t fraction = random->Below(8) == 0 ? 0 : 0x7FFFFF;
  const auto bits = static_cast<uint32_t>(random->Next());
  return std::bit_cast<float>((bits & (0x80000000u | fraction)) | field << 23);
}

// An infinity, or a quiet or signalling NaN, of either sign.
inline float NonFiniteNumber(Random* random) {
  const uint32_t fractions[] = {0, 0x400001, 0x200000};
  const auto sign = static_cast<uint32_t>(random->Below(2)) << 31;
  return std::bit_cast<float>(sign | 0x7F800000u | fractions[random->Below(3)]);
}

// All NaNs as one.
inline uint32_t OneNan(uint32_t bits) {
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : bits;
}
inline Bfloat16 OneNan(Bfloat16 x) { return (x.bits & 0x7FFFu) > 0x7F80u ? Bfloat16{0x7FC0} : x; }

}  // namespace tandem

#endif  // TANDEM_KERNELS_PROBE_HOSTILE_NUMBERS_H_
