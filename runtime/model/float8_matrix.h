// Matrices that a checkpoint keeps in 8-bit floats, F8_E4M3 (kernels/api/e4m3.h), with a scale for
// each block of outputs and inputs. A weight is number · scale, which is rounded to f32, and once
// more to what the weight is then kept in, or multiplied in where a backend keeps both
// (WeightType::kFp8).
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

#include <vector>

#include "runtime/config/model_config.h"
#include "runtime/model/safetensors_file.h"

namespace tandem {

// The scales of each output's runs of blocks.inputs inputs, [N, ⌈K / blocks.inputs⌉]. `numbers` are
// F8_E4M3, [N, K]; `scales` are F32, F16 or BF16, one for each of `blocks`, whose sizes are from 1
// on, in rows of them.
std::vector<float> Float8Scales(const Float8Blocks& blocks, const TensorView& numbers,
                                const TensorView& scales);

// As numbers of f32, [N, K]. A NaN stays one.
std::vector<float> ScaleFloat8(const Float8Blocks& blocks, const TensorView& numbers,
                               const TensorView& scales);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_FLOAT8_MATRIX_H_
