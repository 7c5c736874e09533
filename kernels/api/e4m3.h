// 8-bit floats, E4M3 (Micikevicius et al., "FP8 formats for deep learning", 2022): a sign, four
// bits of exponent (bias 7) and three of mantissa; numbers up to 448, no infinities, one NaN of
// each sign. What KV may be kept in, and some checkpoints' numbers.

#ifndef TANDEM_KERNELS_API_E4M3_H_
#define TANDEM_KERNELS_API_E4M3_H_

#include <bit>
#include <cstdint>

namespace tandem {

struct E4m3 {
  uint8_t bits;
};

// Exact, as it is in bf16.
[[gnu::always_inline]] constexpr float ToFloat(E4m3 value) {
  const uint32_t sign = (value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7Fu;
  uint32_t bits = (magnitude << 20) + (120u << 23);
  if (magnitude < 8) bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f);
  if (magnitude == 0x7F) bits = 0x7FC00000u;
  return std::bit_cast<float>(bits | sign);
}

// To the nearest, ties to even; numbers above 448 become 448. An infinity is no such number but a
// NaN: so what has overflowed stays seen. NaNs have no sign, as that of a sum's depends on the
// machine.
[[gnu::always_inline]] constexpr E4m3 ToE4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x7F800000u) return E4m3{0x7F};
  uint32_t number = (magnitude - (120u << 23) + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20;
  if (magnitude < 0x3C800000u) {  // Below 2^-6, in steps of 2^-9, which are those of 2^14.
    number = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
  } else if (magnitude > 0x43E00000u) {
    number = 0x7E;
  }
  return E4m3{static_cast<uint8_t>(number | (bits >> 24 & 0x80u))};
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_E4M3_H_
