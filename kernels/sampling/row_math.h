// The loops over a whole row, once per instruction set. All give the same bits: each element is
// computed by the same plain operations, and sums have lanes of their own.

#ifndef TANDEM_KERNELS_SAMPLING_ROW_MATH_H_
#define TANDEM_KERNELS_SAMPLING_ROW_MATH_H_

#include <cstdint>
#include <span>

namespace tandem {

struct RowMath {
  const char* name;

  // How many of `count` values, at least 1, are infinite or NaN; and the highest, if none is NaN.
  int64_t (*scan)(const float* values, int64_t count, float* max);

  // How many values are above `bound`.
  int64_t (*count_above)(const float* values, int64_t count, float bound);

  // Adds exp(value - max) to lanes[i % 16], i ascending.
  void (*add_exp)(const float* values, int64_t count, float max, float* lanes);

  // weights[i] = exp((value - max) / temperature) * unit as an integer; returns their sum.
  uint64_t (*weights)(const float* values, int64_t count, float max, float temperature, float unit,
                      uint64_t* weights);

  // Adds the weights of values above `high` to `above`. Lists, ascending, where other values of at
  // least `low` are; returns how many.
  int64_t (*select)(const float* values, const uint64_t* weights, int64_t count, float low,
                    float high, uint64_t* above, int32_t* places);
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
