// Transcendental functions of our own: plain IEEE additions, multiplications and divisions in one
// fixed order, never fused, so every machine and every vector width gives the same bits. (The C
// library picks variants by CPU.) kernels/cpu has the same formulas over 16 lanes; a test compares
// them bit by bit. Branch-free where a compiler may want to vectorise.
//
// Compile with -ffp-contract=off, rounding to nearest. Denormals are as the caller has them:
// kernels flush them (float_environment.h).

#ifndef TANDEM_KERNELS_SUPPORT_VECTOR_MATH_H_
#define TANDEM_KERNELS_SUPPORT_VECTOR_MATH_H_

#include <bit>
#include <cstdint>
#include <limits>

namespace tandem {

// Coefficients of Exp: ln 2 in two parts, the first with 9 bits so that n · kLn2High is exact, and
// a fit of (exp(r) − 1 − r) / r² at the Chebyshev nodes of |r| <= ln(2) / 2.
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.63p-1f;
inline constexpr float kLn2Low = -0x1.bd0106p-13f;
inline constexpr float kExp0 = 0x1p-1f;
inline constexpr float kExp1 = 0x1.5554dcp-3f;
inline constexpr float kExp2 = 0x1.555518p-5f;
inline constexpr float kExp3 = 0x1.120c62p-7f;
inline constexpr float kExp4 = 0x1.6d11fep-10f;
// Adding and subtracting it rounds to an integer, which the low bits of the sum then hold.
inline constexpr float kRoundFloat = 0x1.8p+23f;
inline constexpr double kRoundDouble = 0x1.8p+52;
// Outside: 0 below, +infinity above.
inline constexpr float kExpLowest = -87.0f;
inline constexpr float kExpHighest = 88.0f;

// exp(x) = (1 + fraction) · scale, a power of two. For x from kExpLowest to kExpHighest.
struct ExpParts {
  float fraction;
  float scale;
};
[[gnu::always_inline]] constexpr ExpParts SplitExp(float x) {
  const float shifted = x * kLog2E + kRoundFloat;
  const float n = shifted - kRoundFloat;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  const float q = kExp0 + r * (kExp1 + r * (kExp2 + r * (kExp3 + r * kExp4)));
  return {.fraction = r + (r * r) * q,
          .scale = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23)};
}

// Within 1.1 ulp. exp(0) is exactly 1.
[[gnu::always_inline]] constexpr float Exp(float x) {
  const ExpParts parts = SplitExp(x);
  float y = (1.0f + parts.fraction) * parts.scale;
  y = x < kExpLowest ? 0.0f : y;
  return x > kExpHighest ? std::numeric_limits<float>::infinity() : y;
}

// Natural logarithm, rounded from double (error below 0.501 ulp). Log(0) = −infinity, negative and
// NaN give NaN.
[[gnu::always_inline]] constexpr float Log(float x) {
  if (x == 0.0f) return -std::numeric_limits<float>::infinity();
  if (!(x > 0.0f)) return std::numeric_limits<float>::quiet_NaN();
  if (x == std::numeric_limits<float>::infinity()) return x;
  // x = m · 2^e with m in [√½, √2); log(m) = 2·atanh(s), s = (m − 1) / (m + 1).
  const uint64_t bits = std::bit_cast<uint64_t>(static_cast<double>(x));
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDu;
  const int64_t e = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(e) << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double t = s * s;
  double series = 1.0 / 15.0;
  series = 1.0 / 13.0 + t * series;
  series = 1.0 / 11.0 + t * series;
  series = 1.0 / 9.0 + t * series;
  series = 1.0 / 7.0 + t * series;
  series = 1.0 / 5.0 + t * series;
  series = 1.0 / 3.0 + t * series;
  const double log_m = 2.0 * s + 2.0 * s * (t * series);
  return static_cast<float>(static_cast<double>(e) * 0x1.62e42fefa39efp-1 + log_m);
}

struct SinCosResult {
  float sin;
  float cos;
};

// Sine and cosine of a finite angle in radians, |angle| up to 2^30; rounded from double.
[[gnu::always_inline]] constexpr SinCosResult SinCos(float angle) {
  const double x = angle;
  const double shifted = x * 0x1.45f306dc9c883p-1 + kRoundDouble;  // x / (π/2), to the nearest
  const double n = shifted - kRoundDouble;
  // π/2 in two parts, the first with 23 bits: n · first is exact.
  const double r = (x - n * 0x1.921fb4p+0) - n * 0x1.4442d18469899p-24;
  const double t = r * r;
  double s = -1.0 / 39916800.0;
  s = 1.0 / 362880.0 + t * s;
  s = -1.0 / 5040.0 + t * s;
  s = 1.0 / 120.0 + t * s;
  s = -1.0 / 6.0 + t * s;
  s = r + r * (t * s);
  double c = 1.0 / 479001600.0;
  c = -1.0 / 3628800.0 + t * c;
  c = 1.0 / 40320.0 + t * c;
  c = -1.0 / 720.0 + t * c;
  c = 1.0 / 24.0 + t * c;
  c = -0.5 + t * c;
  c = 1.0 + t * c;
  const uint64_t quadrant = std::bit_cast<uint64_t>(shifted) & 3u;
  const double sine = quadrant & 1u ? c : s;
  const double cosine = quadrant & 1u ? s : c;
  return SinCosResult{static_cast<float>(quadrant & 2u ? -sine : sine),
                      static_cast<float>((quadrant + 1u) & 2u ? -cosine : cosine)};
}

// The log-probability of one id, from the largest logit of its row and log Σ exp(logit − max).
[[gnu::always_inline]] constexpr float LogProbability(float logit, float max, float log_sum) {
  return (logit - max) - log_sum;
}

// x / (1 + exp(−x)).
[[gnu::always_inline]] constexpr float Silu(float x) { return x / (1.0f + Exp(-x)); }

// ActivationFunction::kGeluTanh (kernels/api/rows.h).
[[gnu::always_inline]] constexpr float GeluTanh(float x) {
  const float cube = (x * x) * x;
  const float y = x + 0.044715f * cube;
  return x / (1.0f + Exp(-0x1.988454p+0f * y));
}

// Within 2.5 ulp, small numbers too: −t / (2 + t) with t = exp(−2|x|) − 1, which is taken from the
// parts of the exponential, where nothing cancels.
[[gnu::always_inline]] constexpr float Tanh(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) & 0x80000000u;
  float y = -2.0f * std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ sign);
  y = y < kExpLowest ? kExpLowest : y;
  const ExpParts parts = SplitExp(y);
  const float t = (parts.scale - 1.0f) + parts.scale * parts.fraction;
  return std::bit_cast<float>(std::bit_cast<uint32_t>((0.0f - t) / (2.0f + t)) | sign);
}

// Almost x where |x| is far below the cap, and never beyond it.
[[gnu::always_inline]] constexpr float SoftCap(float x, float cap) { return cap * Tanh(x / cap); }

inline constexpr int kLanes = 16;

// The fixed tree over 16 lanes.
[[gnu::always_inline]] constexpr float SumLanes(const float (&lanes)[kLanes]) {
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) sums[i] = sums[i] + sums[i + 4];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_VECTOR_MATH_H_
