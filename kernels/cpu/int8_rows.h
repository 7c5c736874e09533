// Rows of 8-bit numbers: what a GEMM of 8-bit weights makes of its inputs (kernels/support/int8.h).
// A tile is [row][segment] RowRuns, with groups [group][row] sums, then [unit][row] numbers.

#ifndef TANDEM_KERNELS_CPU_INT8_ROWS_H_
#define TANDEM_KERNELS_CPU_INT8_ROWS_H_

#include <bit>
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

TANDEM_LANES int LanesAt(int64_t i, int64_t count) {
  return count - i < kLanes ? static_cast<int>(count - i) : kLanes;
}

// The scale of from[0, count).
template <typename Element>
TANDEM_LANES float Int8ScaleOfRun(const Element* from, int64_t count) {
  constexpr DType kDType = sizeof(Element) == 4 ? DType::kF32 : DType::kBF16;
  F32x16 largest = Splat(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    largest = LargerMagnitudeOf(largest, LoadLanes(kDType, from, i, LanesAt(i, count)));
  }
  return Int8Scale(LargestOfLanes(largest));
}

TANDEM_LANES int32_t SumOfLanes(I32x16 sums) {
  int32_t parts[kLanes];
  std::memcpy(parts, &sums, sizeof(parts));
  int32_t sum = 0;
  for (const int32_t part : parts) sum += part;
  return sum;
}

// from[0, count) as units at to, to + stride, … Returns the sum of what they are now.
template <typename Policy, typename Element>
TANDEM_LANES int32_t PackInt8Numbers(const Element* from, int64_t count, float scale, std::byte* to,
                                     int64_t stride) {
  constexpr DType kDType = sizeof(Element) == 4 ? DType::kF32 : DType::kBF16;
  I32x16 sums{};
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = LanesAt(i, count);
    const I32x16 q = ToInt8Of(LoadLanes(kDType, from, i, lanes), scale);
    sums = sums + q;
    int8_t bytes[kLanes];
    StoreInt8(bytes, q);
    for (int k = 0; k < lanes; k += Policy::kPerUnit, to += stride) {
      Policy::StoreRow(bytes + k, to);
    }
  }
  return SumOfLanes(sums);
}

// The runs of a row, one a segment where there are segments: each gets its scale, and then
// pack(begin, end, run) is called for its inputs.
template <typename Element, typename Pack>
TANDEM_LANES void ForInt8Runs(const Element* row, int64_t in_features, bool segmented, RowRun* runs,
                              Pack pack) {
  for (int segment = 0; segment < (segmented ? kNumLinearSegments : 1); ++segment) {
    const int64_t begin = segmented ? LinearSegmentBegin(in_features, segment) : 0;
    const int64_t end = segmented ? LinearSegmentBegin(in_features, segment + 1) : in_features;
    runs[segment] = {.scale = Int8ScaleOfRun(row + begin, end - begin), .first_sum = 0};
    pack(begin, end, runs[segment]);
  }
}

// `rows` rows of `in_features` inputs, one after the other; `group`: inputs of a group, 0 without.
template <typename Policy, typename Element>
TANDEM_LANES void PackInt8Tile(const Element* input, int64_t in_features, bool segmented,
                               int64_t group, int rows, std::byte* packed) {
  auto* const runs = reinterpret_cast<RowRun*>(packed);
  auto* const group_sums = reinterpret_cast<int32_t*>(runs + rows * kNumLinearSegments);
  const int64_t groups = group == 0 ? 0 : (in_features + group - 1) / group;
  auto* const units = reinterpret_cast<std::byte*>(group_sums + groups * rows);
  const int64_t stride = int64_t{rows} * Policy::kRowUnitBytes;
  for (int r = 0; r < rows; ++r) {
    const Element* const row = input + r * in_features;
    const auto pack = [&](int64_t first, int64_t count, float scale)
        __attribute__((always_inline)) {
      std::byte* const to = units + first / Policy::kPerUnit * stride + r * Policy::kRowUnitBytes;
      return PackInt8Numbers<Policy>(row + first, count, scale, to, stride);
    };
    const auto pack_run = [&](int64_t begin, int64_t end, RowRun & run)
        __attribute__((always_inline)) {
      if (group == 0) run.first_sum = -Policy::kWeightExcess * pack(begin, end - begin, run.scale);
      for (int64_t first = begin; group != 0 && first < end; first += group) {
        const int64_t count = end - first < group ? end - first : group;
        group_sums[first / group * rows + r] = -pack(first, count, run.scale);
      }
    };
    ForInt8Runs(row, in_features, segmented, runs + r * kNumLinearSegments, pack_run);
  }
}

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_INT8_ROWS_H_
