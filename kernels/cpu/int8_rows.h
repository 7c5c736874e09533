// Rows of 8-bit numbers: what a GEMM of 8-bit weights makes of its inputs (kernels/support/int8.h).
// A tile is [row][segment] RowRuns, then [unit][row] numbers.

#ifndef TANDEM_KERNELS_CPU_INT8_ROWS_H_
#define TANDEM_KERNELS_CPU_INT8_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/api/linear.h"
#include "kernels/cpu/lanes.h"

namespace tandem {
namespace {

// Inputs of one row that share a scale: a segment, or all.
struct RowRun {
  float scale;
  int32_t first_sum;  // A sum with weights that are too high begins here.
};

// Inputs from[0, count) as units at to, to + stride, …
template <typename Policy, typename Element>
TANDEM_LANES RowRun PackInt8Run(const Element* from, int64_t count, std::byte* to, int64_t stride) {
  constexpr DType kDType = sizeof(Element) == 4 ? DType::kF32 : DType::kBF16;
  const auto lanes_at = [count](int64_t i) __attribute__((always_inline)) {
    return count - i < kLanes ? static_cast<int>(count - i) : kLanes;
  };
  F32x16 largest = Splat(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    largest = LargerMagnitudeOf(largest, LoadLanes(kDType, from, i, lanes_at(i)));
  }
  uint32_t lanes[kLanes];
  std::memcpy(lanes, &largest, sizeof(lanes));
  uint32_t absmax = 0;
  for (const uint32_t lane : lanes) absmax = lane > absmax ? lane : absmax;
  const float scale = Int8Scale(std::bit_cast<float>(absmax));
  I32x16 sums{};
  for (int64_t i = 0; i < count; i += kLanes) {
    const I32x16 q = ToInt8Of(LoadLanes(kDType, from, i, lanes_at(i)), scale);
    sums = sums + q;
    int8_t bytes[kLanes];
    StoreInt8(bytes, q);
    for (int k = 0; k < lanes_at(i); k += Policy::kPerUnit, to += stride) {
      Policy::StoreRow(bytes + k, to);
    }
  }
  int32_t parts[kLanes];
  std::memcpy(parts, &sums, sizeof(parts));
  int32_t sum = 0;
  for (const int32_t part : parts) sum += part;
  return {.scale = scale, .first_sum = -Policy::kWeightExcess * sum};
}

// `rows` rows of `in_features` inputs, one after the other.
template <typename Policy, typename Element>
TANDEM_LANES void PackInt8Tile(const Element* input, int64_t in_features, bool segmented, int rows,
                               std::byte* packed) {
  auto* const runs = reinterpret_cast<RowRun*>(packed);
  std::byte* const units = packed + int64_t{rows} * kNumLinearSegments * int64_t{sizeof(RowRun)};
  const int64_t stride = int64_t{rows} * Policy::kRowUnitBytes;
  for (int r = 0; r < rows; ++r) {
    const Element* const row = input + r * in_features;
    for (int segment = 0; segment < (segmented ? kNumLinearSegments : 1); ++segment) {
      const int64_t begin = segmented ? LinearSegmentBegin(in_features, segment) : 0;
      const int64_t end = segmented ? LinearSegmentBegin(in_features, segment + 1) : in_features;
      runs[r * kNumLinearSegments + segment] = PackInt8Run<Policy>(
          row + begin, end - begin,
          units + begin / Policy::kPerUnit * stride + r * Policy::kRowUnitBytes, stride);
    }
  }
}

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_INT8_ROWS_H_
