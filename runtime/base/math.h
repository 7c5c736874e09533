// Integer arithmetic: rounding, and sums and products that may overflow.

#ifndef TANDEM_RUNTIME_BASE_MATH_H_
#define TANDEM_RUNTIME_BASE_MATH_H_

#include <concepts>
#include <optional>

namespace tandem {

template <std::integral T>
constexpr T CeilDiv(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

template <std::integral T>
constexpr T RoundUp(T value, T multiple) {
  return CeilDiv(value, multiple) * multiple;
}

// Nothing if the result does not fit T: for sizes that come from a file or a peer.
template <std::integral T>
constexpr std::optional<T> CheckedMultiply(T a, T b) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
constexpr std::optional<T> CheckedAdd(T a, T b) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_MATH_H_
