// Philox4x32-10: random numbers as a function of a key and a counter (Salmon et al., "Parallel
// Random Numbers: As Easy as 1, 2, 3", SC 2011). No state: any draw can be made anywhere, in any
// order.

#ifndef TANDEM_KERNELS_SAMPLING_PHILOX_H_
#define TANDEM_KERNELS_SAMPLING_PHILOX_H_

#include <array>
#include <cstdint>

namespace tandem {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// What a counter is used for, so that later uses cannot meet in one number.
enum class RandomPurpose : uint32_t { kToken = 0 };

// 64 random bits for one token of one choice.
constexpr uint64_t RandomBits(uint64_t seed, uint32_t choice, uint64_t position,
                              RandomPurpose purpose) {
  const PhiloxCounter words =
      Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice,
                  static_cast<uint32_t>(purpose)},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{words[1]} << 32 | words[0];
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_SAMPLING_PHILOX_H_
