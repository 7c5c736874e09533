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

bool Scan(const float* values, int64_t count, float* max) {
  // On bits, as compilers have vectors for a maximum of integers, not of floats. Those of positive
  // floats rise with the float, those of negative ones with its magnitude: above all positive ones
  // as integers without a sign, below them with one.
  int32_t highest = std::numeric_limits<int32_t>::min();
  int32_t lowest = std::numeric_limits<int32_t>::max();
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(values[i]);
    highest = bits > highest ? bits : highest;
    lowest = bits < lowest ? bits : lowest;
    const uint32_t plain = std::bit_cast<uint32_t>(values[i]);
    largest = plain > largest ? plain : largest;
  }
  *max = std::bit_cast<float>(highest >= 0 ? highest : lowest);
  constexpr int32_t kInfinity = 0x7F800000;
  return highest < kInfinity && (largest & 0x7FFFFFFFu) < uint32_t{kInfinity};
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

uint64_t Weigh(const float* values, int64_t count, float max, float temperature, float unit,
               float* weights) {
  constexpr int64_t kChunk = 256;
  uint64_t total = 0;
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t size = count - first < kChunk ? count - first : kChunk;
    const float* const from = values + first;
    float* const to = weights + first;
    if (temperature == 1.0f) {  // Without the division, which takes as long as the rest.
      for (int64_t i = 0; i < size; ++i) to[i] = Exp(from[i] - max) * unit;
    } else {
      for (int64_t i = 0; i < size; ++i) to[i] = Exp((from[i] - max) / temperature) * unit;
    }
    // Apart, as some instruction sets have vectors for the first only.
    for (int64_t i = 0; i < size; ++i) total += WholeWeight(to[i]);
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

// Writes where the values of `lanes` are, the first of kLanes being at `first`; returns how many.
inline int64_t WritePlaces(uint32_t lanes, int64_t first, int32_t* places) {
#if defined(__AVX512F__)
  const __m512i each =
      _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                       _mm512_set1_epi32(static_cast<int32_t>(first)));
  _mm512_storeu_si512(places, _mm512_maskz_compress_epi32(static_cast<__mmask16>(lanes), each));
  return __builtin_popcount(lanes);
#else
  int64_t found = 0;
  for (; lanes != 0; lanes &= lanes - 1) {
    places[found++] = static_cast<int32_t>(first + __builtin_ctz(lanes));
  }
  return found;
#endif
}

int64_t Select(const float* values, const float* weights, int64_t count, float low, float high,
               uint64_t* above, int32_t* places) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += WholeWeight(values[i] > high ? weights[i] : 0.0f);
  *above += sum;
  int64_t found = 0;
  int64_t first = 0;
  for (; first + kLanes <= count; first += kLanes) {
    found += WritePlaces(LanesInRange(values + first, low, high), first, places + found);
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
                                           .weigh = Weigh,
                                           .select = Select};

}  // namespace tandem
