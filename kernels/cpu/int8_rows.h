// Rows of 8-bit numbers: what a GEMM of 8-bit weights makes of its inputs (kernels/support/int8.h).
// A tile is [row][segment] RowRuns, with groups [group][row] sums, then [unit][row] numbers.
// Inputs that are not made 8 bits are zeros there, and multiplied one by one (OutlierLists).

#ifndef TANDEM_KERNELS_CPU_INT8_ROWS_H_
#define TANDEM_KERNELS_CPU_INT8_ROWS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/api/linear.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/micro_kernel.h"

namespace tandem {
namespace {

// Inputs of one row that share a scale: a segment, or all.
struct RowRun {
  float scale;
  int32_t first_sum;  // A sum with weights that are too high begins here.
};

// The next number below a positive one.
TANDEM_LANES float JustBelow(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) - 1);
}

TANDEM_LANES int32_t SumOfLanes(I32x16 sums) {
  int32_t parts[kLanes];
  std::memcpy(parts, &sums, sizeof(parts));
  int32_t sum = 0;
  for (const int32_t part : parts) sum += part;
  return sum;
}

// Above no magnitude of a run that has all of its inputs in 8 bits.
constexpr float kNoOutliers = __builtin_inff();

// Lanes of from[i, i + lanes); zeros where the magnitude is above `limit`.
template <typename Element>
TANDEM_LANES F32x16 LoadUpTo(float limit, const Element* from, int64_t i, int lanes) {
  constexpr DType kDType = sizeof(Element) == 4 ? DType::kF32 : DType::kBF16;
  const F32x16 x = LoadLanes(kDType, from, i, lanes);
  return Select(FloatsOf(BitsOf(x) & 0x7FFFFFFFu) > limit, Splat(0.0f), x);
}

// The largest magnitude of from[0, count) up to `limit`, by its bits: a NaN is above all.
template <typename Element>
TANDEM_LANES float LargestOfRun(const Element* from, int64_t count, float limit) {
  F32x16 largest = Splat(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    largest = LargerMagnitudeOf(largest, LoadUpTo(limit, from, i, LanesAt(i, count)));
  }
  return LargestOfLanes(largest);
}

// Writes which of from[0, count) have a magnitude above `limit`, ascending and `begin` higher, and
// returns how many. Pieces without are passed over.
template <typename Element>
TANDEM_LANES int32_t ListOutliers(const Element* from, int64_t count, float limit, int64_t begin,
                                  int32_t* inputs) {
  constexpr int64_t kPiece = 128;
  int32_t listed = 0;
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t end = count - first < kPiece ? count : first + kPiece;
    if (LargestOfRun(from + first, end - first, kNoOutliers) <= limit) continue;
    for (int64_t i = first; i < end; ++i) {
      inputs[listed] = static_cast<int32_t>(begin + i);
      listed += __builtin_fabsf(Widen(from[i])) > limit ? 1 : 0;
    }
  }
  return listed;
}

// What `panel` (units of 4 inputs, kVectors vectors of outputs, 128 too high) gives for outliers of
// a row, added to sums[0, kVectors · 16). A sum of its own, inputs ascending, each product and
// addition rounded.
template <int kVectors>
TANDEM_LANES void AddOutliers(const int32_t* inputs, int32_t count, const void* row, DType dtype,
                              const std::byte* panel, float* sums) {
  F32x16 products[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) products[v] = Splat(0.0f);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t k = inputs[i];
    const F32x16 x =
        Splat(dtype == DType::kF32 ? static_cast<const float*>(row)[k]
                                   : ToFloat(Bfloat16{static_cast<const uint16_t*>(row)[k]}));
    const std::byte* const unit = panel + k / 4 * (kVectors * 64);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const I32x16 q = SignedOf((LoadU32(unit + v * 64) >> (k % 4 * 8)) & 0xFFu) - 128;
      products[v] = products[v] + x * ToFloats(q);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    StoreF32(sums + v * kLanes, LoadF32(sums + v * kLanes) + products[v]);
  }
}

// from[0, count) up to `limit`, and zeros, as units at to, to + stride, … Returns the sum of what
// they are now.
template <typename Policy, typename Element>
TANDEM_LANES int32_t PackInt8Numbers(const Element* from, int64_t count, float limit, float scale,
                                     std::byte* to, int64_t stride) {
  I32x16 sums{};
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = LanesAt(i, count);
    const I32x16 q = ToInt8Of(LoadUpTo(limit, from, i, lanes), scale);
    sums = sums + q;
    int8_t bytes[kLanes];
    StoreInt8(bytes, q);
    for (int k = 0; k < lanes; k += Policy::kPerUnit, to += stride) {
      Policy::StoreRow(bytes + k, to);
    }
  }
  return SumOfLanes(sums);
}

template <typename Policy, typename Element>
TANDEM_LANES void PackInt8Rows(const PackTask& task) {
  const int64_t begin = task.begin();
  const int64_t end = task.end();
  const int64_t group = task.group;
  const int rows = task.rows;
  const OutlierLists& outliers = task.outliers;
  auto* const runs = reinterpret_cast<RowRun*>(task.packed);
  auto* const group_sums = reinterpret_cast<int32_t*>(runs + rows * kNumLinearSegments);
  const int64_t groups = group == 0 ? 0 : (task.in_features + group - 1) / group;
  auto* const units = reinterpret_cast<std::byte*>(group_sums + groups * rows);
  const int64_t stride = int64_t{rows} * Policy::kRowUnitBytes;
  for (int r = 0; r < rows; ++r) {
    const Element* const row = static_cast<const Element*>(task.input) + r * task.in_features;
    float largest = LargestOfRun(row + begin, end - begin, kNoOutliers);
    float limit = kNoOutliers;
    if (outliers.threshold != 0) {
      int32_t& count = outliers.counts[r * kNumLinearSegments + task.segment];
      count = 0;
      if (largest >= outliers.threshold) {  // With a NaN all products are none in any case.
        limit = JustBelow(outliers.threshold);
        count = ListOutliers(row + begin, end - begin, limit, begin,
                             outliers.inputs + r * task.in_features + begin);
        largest = LargestOfRun(row + begin, end - begin, limit);
      }
    }
    RowRun& run = runs[r * kNumLinearSegments + task.segment];
    run = {.scale = Int8Scale(largest), .first_sum = 0};
    const auto pack = [&](int64_t first, int64_t count) __attribute__((always_inline)) {
      std::byte* const to = units + first / Policy::kPerUnit * stride + r * Policy::kRowUnitBytes;
      return PackInt8Numbers<Policy>(row + first, count, limit, run.scale, to, stride);
    };
    if (group == 0) run.first_sum = -Policy::kWeightExcess * pack(begin, end - begin);
    for (int64_t first = begin; group != 0 && first < end; first += group) {
      const int64_t count = end - first < group ? end - first : group;
      group_sums[first / group * rows + r] = -pack(first, count);
    }
  }
}

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_INT8_ROWS_H_
