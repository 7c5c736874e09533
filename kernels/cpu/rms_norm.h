// The root-mean-square norm of one row (kernels/api/rows.h). Included once per instruction set.

#ifndef TANDEM_KERNELS_CPU_RMS_NORM_H_
#define TANDEM_KERNELS_CPU_RMS_NORM_H_

#include <cstdint>

#include "kernels/cpu/lanes.h"

namespace tandem {
namespace {

// y[at + i] = (x[i] / root of the mean square) · weight[i], i in [0, count); y is of `dtype`.
TANDEM_LANES void RmsNormRow(const float* x, const float* weight, float epsilon, int64_t count,
                             DType dtype, void* y, int64_t at) {
  F32x16 sums = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const F32x16 v = LoadLanes(DType::kF32, x, i, LanesAt(i, count));
    sums = sums + v * v;
  }
  const float mean = SumOf(sums) / static_cast<float>(count);
  const float scale = 1.0f / __builtin_sqrtf(mean + epsilon);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = LanesAt(i, count);
    const F32x16 w = LoadLanes(DType::kF32, weight, i, lanes);
    StoreLanes(dtype, y, at + i, (LoadLanes(DType::kF32, x, i, lanes) * scale) * w, lanes);
  }
}

}  // namespace
}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_RMS_NORM_H_
