// IEEE half precision: what scales of 4-bit weights are kept in, and some checkpoints' numbers.

#ifndef TANDEM_KERNELS_API_HALF_H_
#define TANDEM_KERNELS_API_HALF_H_

#include <bit>
#include <cstdint>

namespace tandem {

struct Half {
  uint16_t bits;
};

// Exact.
[[gnu::always_inline]] constexpr float ToFloat(Half value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude < 0x400u) {
    const float small = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(small) | sign);
  }
  const uint32_t bits = (magnitude << 13) + 0x38000000u + (magnitude < 0x7C00u ? 0 : 0x38000000u);
  return std::bit_cast<float>(bits | sign);
}

// To the nearest, ties to even; overflow gives infinity; a NaN stays a NaN.
constexpr Half ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t half = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  if (magnitude < 0x38800000u) {  // Below 2^-14, in steps of 2^-24, which are those of 0.5.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  } else if (magnitude > 0x7F800000u) {
    half = 0x7E00u;
  } else if (magnitude >= 0x477FF000u) {
    half = 0x7C00u;
  }
  return Half{static_cast<uint16_t>(half | (bits >> 16 & 0x8000u))};
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_HALF_H_
