#include "runtime/model/float8_matrix.h"

#include <algorithm>

#include "kernels/api/e4m3.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/model/number_convert.h"

namespace tandem {

namespace {

// One a block, in rows of them.
struct BlockScales {
  BlockScales(const Float8Blocks& blocks, const TensorView& numbers, const TensorView& scales)
      : outputs(numbers.shape[0]),
        inputs(numbers.shape[1]),
        runs(CeilDiv(inputs, blocks.inputs)),
        block_outputs(blocks.outputs),
        all(CeilDiv(outputs, blocks.outputs) * runs) {
    TANDEM_CHECK(numbers.type == TensorType::kF8E4M3 && numbers.shape.size() == 2);
    ConvertToF32(scales.type, scales.bytes, all);
  }
  const float* Row(int64_t output) const { return &all[output / block_outputs * runs]; }

  const int64_t outputs, inputs;
  const int64_t runs;  // of an output
  const int64_t block_outputs;
  std::vector<float> all;
};

}  // namespace

std::vector<float> Float8Scales(const Float8Blocks& blocks, const TensorView& numbers,
                                const TensorView& scales) {
  const BlockScales of(blocks, numbers, scales);
  std::vector<float> of_outputs;
  of_outputs.reserve(of.outputs * of.runs);
  for (int64_t n = 0; n < of.outputs; ++n) {
    of_outputs.insert(of_outputs.end(), of.Row(n), of.Row(n) + of.runs);
  }
  return of_outputs;
}

std::vector<float> ScaleFloat8(const Float8Blocks& blocks, const TensorView& numbers,
                               const TensorView& scales) {
  const BlockScales of(blocks, numbers, scales);
  std::vector<float> weights(numbers.bytes.size());
  for (int64_t n = 0; n < of.outputs; ++n) {
    const float* scale = of.Row(n);
    for (int64_t begin = 0; begin < of.inputs; begin += blocks.inputs, ++scale) {
      const int64_t end = n * of.inputs + std::min(begin + blocks.inputs, of.inputs);
      for (int64_t at = n * of.inputs + begin; at < end; ++at) {
        weights[at] = ToFloat(E4m3{numbers.bytes[at]}) * *scale;
      }
    }
  }
  return weights;
}

}  // namespace tandem
