// The loops over a whole row, once per instruction set. All give the same bits: each element is
// computed by the same plain operations, and sums have lanes of their own.

#ifndef TANDEM_KERNELS_SAMPLING_ROW_MATH_H_
#define TANDEM_KERNELS_SAMPLING_ROW_MATH_H_

#include <cstdint>
#include <span>

namespace tandem {

// What a weight counts for: through int64_t, which is one instruction where uint64_t is several.
[[gnu::always_inline]] constexpr uint64_t WholeWeight(float weight) {
  return static_cast<uint64_t>(static_cast<int64_t>(weight));
}

struct RowMath {
  const char* name;

  // Whether all of `count` values, at least 1, are finite; and the highest, if none is NaN.
  bool (*scan)(const float* values, int64_t count, float* max);

  // How many values are above `bound`.
  int64_t (*count_above)(const float* values, int64_t count, float bound);

  // Adds exp(value - max) to lanes[i % 16], i ascending.
  void (*add_exp)(const float* values, int64_t count, float max, float* lanes);

  // weights[i] = exp((value - max) / temperature) * unit, below 2^63; returns the sum of
  // WholeWeights.
  uint64_t (*weigh)(const float* values, int64_t count, float max, float temperature, float unit,
                    float* weights);

  // Adds the whole weights of values above `high` to `above`. Lists, ascending, where other values
  // of at least `low` are; returns how many. `places` has room for kLanes more than `count`.
  int64_t (*select)(const float* values, const float* weights, int64_t count, float low, float high,
                    uint64_t* above, int32_t* places);
};

// For the baseline of the architecture.
extern const RowMath kRowMathGeneric;

// All that this machine runs, the fastest last.
std::span<const RowMath* const> SupportedRowMaths();

inline const RowMath& GetRowMath() {
  static const RowMath* const fastest = SupportedRowMaths().back();
  return *fastest;
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_SAMPLING_ROW_MATH_H_
