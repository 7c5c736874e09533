// What becomes of the sums of a linear layer: segments are added in their tree, then come scales of
// the outputs, bias and rounding (kernels/api/linear.h). Included once per instruction set.

#ifndef TANDEM_KERNELS_CPU_LINEAR_SUMS_H_
#define TANDEM_KERNELS_CPU_LINEAR_SUMS_H_

#include <cstdint>

#include "kernels/api/linear.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"

namespace tandem {
namespace {

// The pairwise tree over segments of `count` sums, as they come: a binary counter whose digits are
// arrays of sums. sum(segment, begin, end, buffer) writes those of inputs [begin, end), never
// empty, to `buffer`. Returns the buffer that holds the result. `count` is a multiple of 16.
template <int64_t kBufferFloats, typename Sum>
const float* SumSegments(int64_t in_features, int64_t count, float (*buffers)[kBufferFloats],
                         const Sum& sum) {
  static_assert(kNumLinearSegments == 8);
  float* waiting[3] = {};  // by level; null: nothing there
  const auto is_waiting = [&waiting](const float* buffer) {
    return waiting[0] == buffer || waiting[1] == buffer || waiting[2] == buffer;
  };
  float* current = nullptr;
  int next_buffer = 0;  // of four: at most one a level, and the current one
  for (int segment = 0; segment < kNumLinearSegments; ++segment) {
    const int64_t begin = LinearSegmentBegin(in_features, segment);
    const int64_t end = LinearSegmentBegin(in_features, segment + 1);
    current = nullptr;
    if (begin < end) {
      while (is_waiting(buffers[next_buffer])) next_buffer = (next_buffer + 1) % 4;
      current = buffers[next_buffer];
      sum(segment, begin, end, current);
    }
    int level = 0;
    for (; (segment >> level & 1) != 0; ++level) {
      float* left = waiting[level];
      waiting[level] = nullptr;
      if (left == nullptr) continue;
      if (current != nullptr) {
        for (int64_t i = 0; i < count; i += kLanes) {
          StoreF32(left + i, LoadF32(left + i) + LoadF32(current + i));
        }
      }
      current = left;
    }
    if (level < 3) waiting[level] = current;
  }
  return current;
}

// Sums of some rows of a task and of some outputs, `stride` of them a row.
struct SumsOfRows {
  const float* sums;
  int stride;
  int64_t first_row, num_rows;
  int64_t first_output;
};

// Lanes of outputs, times `scales` and plus `bias`, where there are such.
template <bool kHasScales>
TANDEM_LANES F32x16 FinishedLanes(const float* sums, F32x16 scales, bool has_bias, F32x16 bias) {
  F32x16 y = LoadF32(sums);
  if constexpr (kHasScales) y = y * scales;
  return has_bias ? y + bias : y;
}

// Writes lanes of outputs first_output + i and on of all rows, or adds them to what is there.
template <DType kOutput, bool kAdds, bool kHasScales, bool kHasBias>
TANDEM_LANES void FinishColumn(const GemmTask& task, const SumsOfRows& rows, int i, int lanes,
                               F32x16 scales, F32x16 bias) {
  const float* sums = rows.sums + i;
  int64_t at = rows.first_row * task.output_stride + rows.first_output + i;
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    F32x16 y = FinishedLanes<kHasScales>(sums, scales, kHasBias, bias);
    if constexpr (kAdds) y = LoadLanes(kOutput, task.output, at, lanes) + y;
    StoreLanes(kOutput, task.output, at, y, lanes);
    sums += rows.stride;
    at += task.output_stride;
  }
}

// As FinishRows, where there is an activation. Of a gated layer a vector of gates is before that of
// their ups.
template <bool kHasScales, typename ScalesOf>
TANDEM_LANES void FinishActivated(const GemmTask& task, const SumsOfRows& rows,
                                  ScalesOf scales_of) {
  const bool has_bias = task.bias != nullptr;
  const int vectors = task.gated ? 2 : 1;  // of sums for one that is stored
  const int64_t num_columns = task.num_outputs / vectors;
  for (int i = 0; i < rows.stride; i += vectors * kLanes) {
    const int64_t column = (rows.first_output + i) / vectors;
    if (column >= num_columns) break;
    const int lanes = LanesAt(column, num_columns);
    F32x16 scales{}, bias{}, up_scales{}, up_bias{};
    if constexpr (kHasScales) {
      scales = scales_of(i);
      if (task.gated) up_scales = scales_of(i + kLanes);
    }
    if (has_bias) {
      bias = LoadLanes(DType::kF32, task.bias, column, lanes);
      if (task.gated) up_bias = LoadLanes(DType::kF32, task.up_bias, column, lanes);
    }
    const float* sums = rows.sums + i;
    int64_t at = rows.first_row * task.output_stride + column;
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      F32x16 y = FinishedLanes<kHasScales>(sums, scales, has_bias, bias);
      y = *task.activation == ActivationFunction::kSilu ? SiluOf(y) : GeluTanhOf(y);
      if (task.gated) {
        y = y * FinishedLanes<kHasScales>(sums + kLanes, up_scales, has_bias, up_bias);
      }
      StoreLanes(task.output_dtype, task.output, at, y, lanes);
      sums += rows.stride;
      at += task.output_stride;
    }
  }
}

// Writes their outputs. scales_of(i) are the scales of the lanes of outputs first_output + i and
// on, where kHasScales.
template <bool kHasScales, typename ScalesOf>
TANDEM_LANES void FinishRows(const GemmTask& task, const SumsOfRows& rows, ScalesOf scales_of) {
  if (task.activation) {
    FinishActivated<kHasScales>(task, rows, scales_of);
    return;
  }
  const int64_t left = task.num_outputs - rows.first_output;
  const int count = left < rows.stride ? static_cast<int>(left) : rows.stride;
  for (int i = 0; i < count; i += kLanes) {
    const int lanes = LanesAt(i, count);
    const auto finish = [&]<DType kOutput, bool kAdds>() __attribute__((always_inline)) {
      F32x16 scales{};
      if constexpr (kHasScales) scales = scales_of(i);
      if (task.bias == nullptr) {
        FinishColumn<kOutput, kAdds, kHasScales, false>(task, rows, i, lanes, scales, F32x16{});
      } else {
        const F32x16 bias = LoadLanes(DType::kF32, task.bias, rows.first_output + i, lanes);
        FinishColumn<kOutput, kAdds, kHasScales, true>(task, rows, i, lanes, scales, bias);
      }
    };
    if (task.output_dtype == DType::kBF16) {
      finish.template operator()<DType::kBF16, false>();
    } else if (task.adds_to_output) {
      finish.template operator()<DType::kF32, true>();
    } else {
      finish.template operator()<DType::kF32, false>();
    }
  }
}

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_LINEAR_SUMS_H_
