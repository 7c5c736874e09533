// What 8-bit floats (E4M3) are, by their definition.

#ifndef TANDEM_TESTS_SUPPORT_E4M3_DEFINITION_H_
#define TANDEM_TESTS_SUPPORT_E4M3_DEFINITION_H_

#include <algorithm>
#include <cmath>

namespace tandem {

// (-1)^s · 2^(e - 7) · 1.m, without the 1 and with e of 1 where e is 0; the highest magnitude is a
// NaN.
inline double E4m3ByDefinition(int number) {
  const int exponent = number >> 3 & 15, mantissa = number & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const double significand = (exponent == 0 ? 0 : 1) + mantissa / 8.0;
  return (number < 128 ? 1 : -1) * std::ldexp(significand, std::max(exponent, 1) - 7);
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_E4M3_DEFINITION_H_
