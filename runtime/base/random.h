// SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): small, seedable, the same on every machine. For
// simulation, tests and tie-breaking; sampling draws from Philox (kernels/sampling).

#ifndef TANDEM_RUNTIME_BASE_RANDOM_H_
#define TANDEM_RUNTIME_BASE_RANDOM_H_

#include <cstdint>

namespace tandem {

// A bijective mix of 64 bits.
constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return Mix64(state_ += 0x9E3779B97F4A7C15u); }
  // Uniform in [0, n), n > 0.
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }
  // Uniform in [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }
  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Unit() < probability; }

 private:
  uint64_t state_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_RANDOM_H_
