// The functions of row_math.h, for a file that says which table it defines, and its name:
//
//   #define TANDEM_ROW_MATH kRowMathAvx2
//   #define TANDEM_ROW_MATH_NAME "avx2"
//   #include "kernels/sampling/row_math.inc.h"
//
// No templates of the standard library here: the linker keeps one copy of those, and it could be
// one with instructions that a machine lacks.

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/sampling/row_math.h"
#include "kernels/support/vector_math.h"

namespace tandem {
namespace {

float Max(const float* values, int64_t count) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    }
  }
  for (; i < count; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  float max = lanes[0];
  for (const float lane : lanes) max = lane > max ? lane : max;
  return max;
}

int64_t CountNotFinite(const float* values, int64_t count) {
  constexpr uint32_t kExponent = 0x7F800000;
  // A 32-bit sum of 2^31 values cannot overflow, and rows are far shorter.
  uint32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += (std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent ? 1u : 0u;
  }
  return sum;
}

int64_t CountAbove(const float* values, int64_t count, float bound) {
  uint32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i] > bound ? 1u : 0u;
  return sum;
}

void AddExp(const float* values, int64_t count, float max, float* lanes) {
  float sums[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[lane];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] = sums[lane] + Exp(values[i + lane] - max);
    }
  }
  for (int lane = 0; i + lane < count; ++lane) {
    sums[lane] = sums[lane] + Exp(values[i + lane] - max);
  }
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = sums[lane];
}

uint64_t Weights(const float* values, int64_t count, float max, float temperature, float unit,
                 uint64_t* weights) {
  constexpr int64_t kChunk = 256;
  float scaled[kChunk];
  uint64_t total = 0;
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t size = count - first < kChunk ? count - first : kChunk;
    // Two loops, as some instruction sets have vectors for the first only.
    for (int64_t i = 0; i < size; ++i) {
      scaled[i] = Exp((values[first + i] - max) / temperature) * unit;
    }
    for (int64_t i = 0; i < size; ++i) {
      // Through int64_t, which is one instruction where uint64_t is several.
      const uint64_t weight = static_cast<uint64_t>(static_cast<int64_t>(scaled[i]));
      weights[first + i] = weight;
      total += weight;
    }
  }
  return total;
}

}  // namespace

extern const RowMath TANDEM_ROW_MATH;
constinit const RowMath TANDEM_ROW_MATH = {.name = TANDEM_ROW_MATH_NAME,
                                           .max = Max,
                                           .count_not_finite = CountNotFinite,
                                           .count_above = CountAbove,
                                           .add_exp = AddExp,
                                           .weights = Weights};

}  // namespace tandem
