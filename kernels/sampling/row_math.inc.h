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

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/sampling/row_math.h"
#include "kernels/support/vector_math.h"

namespace tandem {
namespace {

// Integers of the same order as floats, which vectors take the maximum of: their own inverse.
inline int32_t FlipNegative(int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

int64_t Scan(const float* values, int64_t count, float* max) {
  constexpr int32_t kExponent = 0x7F800000;
  int32_t highest = std::numeric_limits<int32_t>::min();
  // A 32-bit sum of 2^31 values cannot overflow, and rows are far shorter.
  uint32_t not_finite = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(values[i]);
    not_finite += (bits & kExponent) == kExponent ? 1u : 0u;
    const int32_t ordered = FlipNegative(bits);
    highest = ordered > highest ? ordered : highest;
  }
  *max = std::bit_cast<float>(FlipNegative(highest));
  return not_finite;
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

// Which of kLanes values are from `low` to `high`, the first in the lowest bit.
inline uint32_t LanesInRange(const float* values, float low, float high) {
#if defined(__AVX512F__)
  const __m512 v = _mm512_loadu_ps(values);
  const __mmask16 reach = _mm512_cmp_ps_mask(v, _mm512_set1_ps(low), _CMP_GE_OQ);
  return _mm512_mask_cmp_ps_mask(reach, v, _mm512_set1_ps(high), _CMP_LE_OQ);
#elif defined(__AVX2__)
  const auto eight = [&](const float* first) {
    const __m256 v = _mm256_loadu_ps(first);
    const __m256 in = _mm256_and_ps(_mm256_cmp_ps(v, _mm256_set1_ps(low), _CMP_GE_OQ),
                                    _mm256_cmp_ps(v, _mm256_set1_ps(high), _CMP_LE_OQ));
    return static_cast<uint32_t>(_mm256_movemask_ps(in));
  };
  return eight(values) | eight(values + 8) << 8;
#else
  uint32_t lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes |= (values[lane] >= low && values[lane] <= high ? 1u : 0u) << lane;
  }
  return lanes;
#endif
}

int64_t Select(const float* values, const uint64_t* weights, int64_t count, float low, float high,
               uint64_t* above, int32_t* places) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i] > high ? weights[i] : 0;
  *above += sum;
  int64_t found = 0;
  int64_t first = 0;
  for (; first + kLanes <= count; first += kLanes) {
    for (uint32_t lanes = LanesInRange(values + first, low, high); lanes != 0; lanes &= lanes - 1) {
      places[found++] = static_cast<int32_t>(first + __builtin_ctz(lanes));
    }
  }
  for (; first < count; ++first) {
    if (values[first] >= low && values[first] <= high) {
      places[found++] = static_cast<int32_t>(first);
    }
  }
  return found;
}

}  // namespace

extern const RowMath TANDEM_ROW_MATH;
constinit const RowMath TANDEM_ROW_MATH = {.name = TANDEM_ROW_MATH_NAME,
                                           .scan = Scan,
                                           .count_above = CountAbove,
                                           .add_exp = AddExp,
                                           .weights = Weights,
                                           .select = Select};

}  // namespace tandem
