#include "runtime/model/float8_matrix.h"

#include <algorithm>

#include "kernels/api/e4m3.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/model/number_convert.h"

namespace tandem {

std::vector<float> Float8Scales(const Float8Blocks& blocks, int64_t outputs, int64_t inputs,
                                const TensorView& scales) {
  const int64_t runs = CeilDiv(inputs, blocks.inputs);
  std::vector<float> given(CeilDiv(outputs, blocks.outputs) * runs);
  ConvertToF32(scales.type, scales.bytes, given);
  std::vector<float> of_outputs;
  of_outputs.reserve(outputs * runs);
  for (int64_t n = 0; n < outputs; ++n) {
    const auto row = given.begin() + n / blocks.outputs * runs;
    of_outputs.insert(of_outputs.end(), row, row + runs);
  }
  return of_outputs;
}

std::vector<float> ScaleFloat8(const Float8Blocks& blocks, const TensorView& numbers,
                               const TensorView& scales) {
  TANDEM_CHECK(numbers.type == TensorType::kF8E4M3 && numbers.shape.size() == 2);
  const int64_t outputs = numbers.shape[0], inputs = numbers.shape[1];
  const std::vector<float> all_scales = Float8Scales(blocks, outputs, inputs, scales);
  const float* scale = all_scales.data();
  std::vector<float> weights(numbers.bytes.size());
  for (int64_t n = 0; n < outputs; ++n) {
    for (int64_t begin = 0; begin < inputs; begin += blocks.inputs, ++scale) {
      const int64_t end = n * inputs + std::min(begin + blocks.inputs, inputs);
      for (int64_t at = n * inputs + begin; at < end; ++at) {
        weights[at] = ToFloat(E4m3{numbers.bytes[at]}) * *scale;
      }
    }
  }
  return weights;
}

}  // namespace tandem
