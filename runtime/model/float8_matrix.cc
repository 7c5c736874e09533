#include "runtime/model/float8_matrix.h"

#include <algorithm>

#include "kernels/api/e4m3.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/model/number_convert.h"

namespace tandem {

std::vector<float> ScaleFloat8(const Float8Blocks& blocks, const TensorView& numbers,
                               const TensorView& scales) {
  TANDEM_CHECK(numbers.type == TensorType::kF8E4M3 && numbers.shape.size() == 2);
  const int64_t outputs = numbers.shape[0], inputs = numbers.shape[1];
  const int64_t row_blocks = CeilDiv(inputs, blocks.inputs);
  std::vector<float> scale(CeilDiv(outputs, blocks.outputs) * row_blocks);
  ConvertToF32(scales.type, scales.bytes, scale);
  std::vector<float> weights(numbers.bytes.size());
  for (int64_t n = 0; n < outputs; ++n) {
    const uint8_t* const row = numbers.bytes.data() + n * inputs;
    const float* const row_scale = scale.data() + n / blocks.outputs * row_blocks;
    for (int64_t begin = 0; begin < inputs; begin += blocks.inputs) {
      const float block_scale = row_scale[begin / blocks.inputs];
      const int64_t end = std::min(begin + blocks.inputs, inputs);
      for (int64_t k = begin; k < end; ++k) {
        weights[n * inputs + k] = ToFloat(E4m3{row[k]}) * block_scale;
      }
    }
  }
  return weights;
}

}  // namespace tandem
