// How weights lie in a GPU's memory. A panel is sixteen outputs. A chunk is what one thread loads
// at once, 16 bytes.
//
//   f32, bf16  [panel][chunk][16 outputs][4 or 8 inputs]: half a warp reads 256 bytes in a row.
//   8 bits, and bf16 for tensor cores
//              [block][panel][4 steps][32 lanes][16 bytes]: the A fragments of mma.m16n8k32 and
//              m16n8k16, so that a warp's load is 512 bytes in a row and feeds the product as it
//              is; what neighbouring panels have of a block is copied at once. A step is 32 bytes
//              of each output's inputs. Behind all blocks of 8 bits are the scales of the outputs,
//              as these are packed.
//   4 bits     [block][panel][4 steps][32 lanes][8 bytes], of each panel's block then
//              [128 / group][16 outputs]: the scale in half precision, a zero, a byte that is none.
//              A lane's bytes are what it has of 8 bits: registers 0 and 1 in the lower halves,
//              2 and 3 in the upper ones.
//   8-bit floats
//              [block][panel][4 steps][32 lanes][8 bytes], of each panel's block then [16 outputs]
//              scales in f32. A lane's bytes are what it has of bf16: the first word's are
//              register 0's first, 2's first, 0's second and 2's second number, the other's 1's
//              and 3's. The scale is NaN where one of the numbers is: they are read as if none
//              were.
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

// What products of bf16 are made with; those of f32 and of 8 and 4 bits are the same with either.
enum class CudaProducts : uint8_t { kFma, kTensorCores };

inline constexpr int kPanelOutputs = 16;
// Columns of a gated layer's panel for tensor cores: as many gates, and then their ups.
inline constexpr int kPanelColumns = kPanelOutputs / 2;
inline constexpr int kChunkBytes = 16;
// An output's inputs for one product of the tensor cores, and a panel's weights for it; the same
// for a block of so many.
inline constexpr int kStepBytes = 32;
inline constexpr int kStepPanelBytes = kPanelOutputs * kStepBytes;
inline constexpr int kBlockSteps = 4;
inline constexpr int kInputBlockBytes = kBlockSteps * kStepBytes;
inline constexpr int kBlockPanelBytes = kBlockSteps * kStepPanelBytes;

// Inputs of an output, in f32 or bf16.
TANDEM_ANYWHERE constexpr int ChunkInputs(WeightType type) {
  return type == WeightType::kF32 ? 4 : 8;
}
// The same of a block.
TANDEM_ANYWHERE constexpr int BlockInputs(WeightType type) {
  const bool bytes = type == WeightType::kInt8 || type == WeightType::kInt4;
  return bytes ? kInputBlockBytes : kInputBlockBytes / 2;
}

// Groups of 8-bit floats are whole blocks, or all of an output's inputs.
inline constexpr int kFp8GroupMultiple = BlockInputs(WeightType::kFp8);

// What a panel has of a block in 4 bits: its numbers, then scales and zeros of groups of
// `group` inputs.
inline constexpr int kInt4StepPanelBytes = kStepPanelBytes / 2;
inline constexpr int kInt4NumberBytes = kBlockSteps * kInt4StepPanelBytes;
inline constexpr int kInt4ScaleBytes = kPanelOutputs * 4;  // of a group
TANDEM_ANYWHERE constexpr int Int4PanelBytes(int group) {
  return kInt4NumberBytes + kInputBlockBytes / group * kInt4ScaleBytes;
}

// The same of 8-bit floats.
inline constexpr int kFp8StepPanelBytes = kStepPanelBytes / 2;
inline constexpr int kFp8NumberBytes = kBlockSteps * kFp8StepPanelBytes;
inline constexpr int kFp8PanelBytes = kFp8NumberBytes + kPanelOutputs * 4;

// Where byte `byte` of an output's block is among the panel's. Register i of lane l has of output
// l / 4 + 8 · (i % 2) the four bytes from 16 · (i / 2) + 4 · (l % 4) on.
constexpr int BlockByteAt(int output, int byte) {
  const int of_step = byte % kStepBytes;
  const int lane = output % 8 * 4 + of_step % 16 / 4;
  const int word = output / 8 + of_step / 16 * 2;
  return byte / kStepBytes * kStepPanelBytes + lane * kChunkBytes + word * 4 + byte % 4;
}

// Where the byte with input `input` of an output's block is, of 4 bits; it is the upper half if
// IsUpperInt4.
constexpr int Int4ByteAt(int output, int input) {
  const int of_step = input % kStepBytes;
  const int lane = output % 8 * 4 + of_step % 16 / 4;
  return input / kStepBytes * kInt4StepPanelBytes + lane * 8 + output / 8 * 4 + input % 4;
}
constexpr bool IsUpperInt4(int input) { return input % kStepBytes >= kStepBytes / 2; }

// Where the number with input `input` of an output's block is, of 8-bit floats.
constexpr int Fp8ByteAt(int output, int input) {
  constexpr int kStepInputs = kStepBytes / 2;
  const int of_step = input % kStepInputs;
  const int lane = output % 8 * 4 + of_step % 8 / 2;
  return input / kStepInputs * kFp8StepPanelBytes + lane * 8 + output / 8 * 4 + of_step / 8 +
         of_step % 2 * 2;
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
