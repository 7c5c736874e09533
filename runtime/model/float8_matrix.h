// Matrices that a checkpoint keeps in 8-bit floats, F8_E4M3 (Micikevicius et al., "FP8 formats for
// deep learning", 2022), with a scale for each block of outputs and inputs. A weight is number ·
// scale, which is rounded to f32, and once more to what the weight is then kept in.
//
//                          scales' tensor      shape                      blocks
//   fp8                    weight_scale_inv    [⌈N / 128⌉, ⌈K / 128⌉]     as config.json says
//   fp8, of Transformers   weight_scale_inv    []                         the matrix
//   fp8, of AutoFP8        weight_scale        [] or [1]                  the matrix
//   compressed-tensors     weight_scale        [1], [N, 1] or as fp8's    by its strategy
//   fbgemm_fp8             weight_scale        [N, 1]                     an output
//
// What the names call inverse is multiplied, too.

#ifndef TANDEM_RUNTIME_MODEL_FLOAT8_MATRIX_H_
#define TANDEM_RUNTIME_MODEL_FLOAT8_MATRIX_H_

#include <bit>
#include <cstdint>
#include <vector>

#include "runtime/config/model_config.h"
#include "runtime/model/safetensors_file.h"

namespace tandem {

// A sign, four bits of exponent (bias 7) and three of mantissa; no infinities, and one NaN of each
// sign. Exact.
constexpr float FloatOfE4m3(uint8_t number) {
  const uint32_t sign = (number & 0x80u) << 24;
  const uint32_t magnitude = number & 0x7Fu;
  uint32_t bits = (magnitude << 20) + (120u << 23);
  if (magnitude < 8) bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f);
  if (magnitude == 0x7F) bits = 0x7FC00000u;
  return std::bit_cast<float>(bits | sign);
}

// As numbers of f32, [N, K]. `numbers` are F8_E4M3 of that shape, `scales` F32, F16 or BF16, one
// for each of `blocks`, whose sizes are from 1 on, in rows of them. A NaN stays one.
std::vector<float> ScaleFloat8(const Float8Blocks& blocks, const TensorView& numbers,
                               const TensorView& scales);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_FLOAT8_MATRIX_H_
