#include "kernels/cuda/emulated/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tandem::emulated {
namespace {

constexpr int kPlaces = 25;  // behind the largest exponent
constexpr int kF32Places = 23;
constexpr int kBf16Places = 7;
constexpr int kBias = 127;
constexpr int kLeastExponent = 1 - kBias;

// ±significand · 2^(exponent − places)
struct Term {
  int64_t significand;
  int exponent;
  int places;
};

// A finite number, which has so many binary places.
Term TermOf(uint32_t bits, int places) {
  const int field = static_cast<int>(bits >> places & 0xFFu);
  const int64_t fraction = bits & ((1u << places) - 1);
  const int64_t magnitude = field == 0 ? fraction : fraction | int64_t{1} << places;
  const bool negative = (bits >> (places + 8) & 1u) != 0;
  return {negative ? -magnitude : magnitude, std::max(field, 1) - kBias, places};
}

float ValueOf(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Towards zero.
int64_t CutOff(const Term& term, int largest) {
  if (term.significand == 0) return 0;  // Its exponent may be larger.
  const int shift = kPlaces - term.places - (largest - term.exponent);
  if (shift >= 0) return term.significand * (int64_t{1} << shift);
  if (shift < -62) return 0;
  return term.significand / (int64_t{1} << -shift);
}

// sum · 2^(exponent − kPlaces), towards zero.
float ToF32(int64_t sum, int exponent) {
  if (sum == 0) return 0.0f;
  const uint64_t magnitude = static_cast<uint64_t>(std::abs(sum));
  const int top = std::bit_width(magnitude) - 1;
  // The exponent of the last place that f32 has here.
  const int last = std::max(exponent - kPlaces + top, kLeastExponent) - kF32Places;
  const int drop = last - (exponent - kPlaces);
  const uint64_t kept = drop > 62 ? 0 : drop > 0 ? magnitude >> drop : magnitude;
  if (kept == 0) return 0.0f;  // Never a negative one.
  const float value = std::ldexp(static_cast<float>(kept), drop > 0 ? last : exponent - kPlaces);
  return sum < 0 ? -value : value;
}

}  // namespace

float TensorCoreSum(float c, const uint16_t (&a)[16], const uint16_t (&b)[16]) {
  bool finite = std::isfinite(c);
  float special = c;
  for (int k = 0; k < 16; ++k) {
    const float x = ValueOf(a[k]);
    const float y = ValueOf(b[k]);
    if (std::isfinite(x) && std::isfinite(y)) continue;
    special = (finite ? 0.0f : special) + x * y;
    finite = false;
  }
  if (!finite) return std::isnan(special) ? std::numeric_limits<float>::quiet_NaN() : special;

  Term terms[17] = {TermOf(std::bit_cast<uint32_t>(c), kF32Places)};
  for (int k = 0; k < 16; ++k) {
    const Term x = TermOf(a[k], kBf16Places);
    const Term y = TermOf(b[k], kBf16Places);
    terms[k + 1] = {x.significand * y.significand, x.exponent + y.exponent, 2 * kBf16Places};
  }
  int largest = std::numeric_limits<int>::min();
  for (const Term& term : terms) {
    if (term.significand != 0) largest = std::max(largest, term.exponent);
  }
  if (largest == std::numeric_limits<int>::min()) return 0.0f;
  int64_t sum = 0;
  for (const Term& term : terms) sum += CutOff(term, largest);
  return ToF32(sum, largest);
}

}  // namespace tandem::emulated
