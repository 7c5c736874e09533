// How weights lie in a GPU's memory. A panel is sixteen outputs. A chunk is what one thread loads
// at once, 16 bytes.
//
//   f32, bf16  [panel][chunk][16 outputs][4 or 8 inputs]: half a warp reads 256 bytes in a row.
//   8 bits     [panel][32 inputs][32 lanes][16 bytes]: the A fragments of mma.m16n8k32, so that a
//              warp's load is 512 bytes in a row and feeds the product as it is; behind all panels
//              the scales of the outputs, [N].
//
// Inputs past K and outputs past N are zeros.

#ifndef TANDEM_KERNELS_CUDA_PACKED_WEIGHTS_H_
#define TANDEM_KERNELS_CUDA_PACKED_WEIGHTS_H_

#include <cstdint>

#include "kernels/api/dtype.h"
#include "kernels/api/linear.h"

#if defined(__CUDACC__)
#define TANDEM_ANYWHERE __host__ __device__
#else
#define TANDEM_ANYWHERE
#endif

namespace tandem {

inline constexpr int kPanelOutputs = 16;
inline constexpr int kChunkBytes = 16;
// The inputs of one product of 8 bits, and the bytes of a panel's weights for it.
inline constexpr int kInt8Step = 32;
inline constexpr int kInt8StepBytes = kPanelOutputs * kInt8Step;

// Inputs of an output, in f32 or bf16.
TANDEM_ANYWHERE constexpr int ChunkInputs(WeightType type) {
  return type == WeightType::kF32 ? 4 : 8;
}

// Where weight (output of the panel, input of the step) is among a step's bytes: byte j of register
// i of lane l has output l / 4 + 8 · (i % 2), input 16 · (i / 2) + 4 · (l % 4) + j.
constexpr int Int8WeightAt(int output, int input) {
  const int lane = output % 8 * 4 + input % 16 / 4;
  const int word = output / 8 + input / 16 * 2;
  return lane * 16 + word * 4 + input % 4;
}

// The pairwise tree over the segments' sums; empty ones take no part (kernels/api/linear.h).
TANDEM_ANYWHERE constexpr float SegmentTree(float (&sums)[kNumLinearSegments],
                                            int64_t in_features) {
  bool there[kNumLinearSegments] = {};
  for (int i = 0; i < kNumLinearSegments; ++i) {
    there[i] = LinearSegmentBegin(in_features, i) < LinearSegmentBegin(in_features, i + 1);
  }
  for (int step = 1; step < kNumLinearSegments; step *= 2) {
    for (int i = 0; i < kNumLinearSegments; i += 2 * step) {
      if (!there[i + step]) continue;
      sums[i] = there[i] ? sums[i] + sums[i + step] : sums[i + step];
      there[i] = true;
    }
  }
  return sums[0];
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_PACKED_WEIGHTS_H_
