// The three types of a model's numbers, which do not decide each other: what operations compute in
// (DType), what packed weights are kept in (WeightType), and what KV is kept in (KvType). And
// bfloat16's conversions.

#ifndef TANDEM_KERNELS_API_DTYPE_H_
#define TANDEM_KERNELS_API_DTYPE_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tandem {

// The type of numbers that operations take and give: of every array that is neither packed weights
// nor a KV tile.
enum class DType : uint8_t { kF32, kBF16 };

constexpr size_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
constexpr const char* NameOf(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

// One value for each way to keep a matrix, groups and scales included. Only the backend's packing
// and its inner loop know what that is in bytes.
enum class WeightType : uint8_t {
  kF32,
  kBF16,
  kInt8,  // W8A8: a scale an output; inputs are made 8 bits too, a scale a row (docs/numerics.md)
  kInt4,  // W4A8: a scale and a zero a group of inputs (LinearSpec::group); inputs as with kInt8
  kFp8,   // E4M3 (e4m3.h), a scale a group of inputs; multiplied as kBF16's, with the same bits
};

constexpr const char* NameOf(WeightType type) {
  constexpr const char* kNames[] = {"f32", "bf16", "int8", "int4", "fp8"};
  return kNames[static_cast<int>(type)];
}
// What keeps numbers of `dtype` as they are.
constexpr WeightType WeightTypeOf(DType dtype) {
  return dtype == DType::kF32 ? WeightType::kF32 : WeightType::kBF16;
}

// One value for each way to keep K and V; scales are in the tile. Only the backend that writes and
// reads a tile knows its bytes.
enum class KvType : uint8_t {
  kF32,
  kBF16,
  kInt8,    // a scale a token of a KV head (docs/numerics.md)
  kInt8G8,  // a scale each 8 numbers of a token
  kFp8,     // E4M3 (e4m3.h), without scales
};

inline constexpr KvType kAllKvTypes[] = {KvType::kF32, KvType::kBF16, KvType::kInt8,
                                         KvType::kInt8G8, KvType::kFp8};

constexpr const char* NameOf(KvType type) {
  constexpr const char* kNames[] = {"f32", "bf16", "int8", "int8g8", "fp8"};
  return kNames[static_cast<int>(type)];
}
constexpr KvType KvTypeOf(DType dtype) {
  return dtype == DType::kF32 ? KvType::kF32 : KvType::kBF16;
}

// Brain floating point: the upper half of a float.
struct Bfloat16 {
  uint16_t bits;
  friend constexpr bool operator==(Bfloat16, Bfloat16) = default;
};

// Exact. (Always inlined: files compiled for a later instruction set use it too, and must leave no
// copy of it that the linker could pick for everyone.)
[[gnu::always_inline]] constexpr float ToFloat(Bfloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// To the nearest, ties to even; overflow gives infinity; a NaN stays a NaN (quiet).
[[gnu::always_inline]] constexpr Bfloat16 ToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return Bfloat16{static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  return Bfloat16{static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_DTYPE_H_
