// A layer whose weights come in 8-bit floats, and the one of bf16 that it is.

#ifndef TANDEM_TESTS_KERNELS_FP8_CASE_H_
#define TANDEM_TESTS_KERNELS_FP8_CASE_H_

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/api/e4m3.h"
#include "runtime/base/random.h"
#include "tests/kernels/linear_layer.h"

namespace tandem {

struct Fp8Case {
  LinearSpec kept;
  LinearSpec wide;
  std::vector<uint8_t> numbers;
  std::vector<float> scales;
  std::vector<Bfloat16> wide_numbers;
  std::vector<WeightPart> parts;

  // The `index`-th: shapes, groups, segments and activations take turns, every fourth has NaNs,
  // later ones have scales of all sizes.
  Fp8Case(Random* random, int index) {
    wide = {.in_features = index % 6 == 0 ? random->Between(1024, 1400) : random->Between(1, 700),
            .out_features = 2 * random->Between(1, 150),
            .weight_type = WeightType::kBF16,
            .compute_dtype = DType::kBF16,
            .output_dtype = DType::kF32,
            .segmented = index % 2 == 0};
    if (index % 5 == 1) wide.activation = ActivationFunction::kSilu;
    wide.gated = index % 10 == 1;
    kept = wide;
    kept.weight_type = WeightType::kFp8;
    kept.scaled = true;
    kept.group = index % 3 == 0 ? wide.in_features : 64 * random->Between(1, 3);
    numbers.resize(wide.in_features * wide.out_features);
    for (uint8_t& number : numbers) {
      number = static_cast<uint8_t>(random->Below(256));
      const bool is_nan = (number & 0x7F) == 0x7F;
      if (is_nan && !(index % 4 == 0 && random->Chance(0.01))) number ^= 0x40;
    }
    scales.resize(kept.groups() * wide.out_features);
    for (float& scale : scales) {
      scale = static_cast<float>(random->Unit() - 0.3) * 0.01f;
      if (index >= 20) scale = std::ldexp(scale, static_cast<int>(random->Between(-140, 90)));
    }
    for (size_t at = 0; at < numbers.size(); ++at) {
      const auto [n, k] = std::lldiv(static_cast<int64_t>(at), wide.in_features);
      const float scale = scales[n * kept.groups() + k / kept.group];
      wide_numbers.push_back(ToBfloat16(ToFloat(E4m3{numbers[at]}) * scale));
    }
    const int64_t first = random->Between(0, wide.out_features);  // Outputs of the first part.
    for (const auto& [begin, end] : {std::pair(int64_t{0}, first), {first, wide.out_features}}) {
      if (begin == end) continue;
      parts.push_back({.data = numbers.data() + begin * wide.in_features,
                       .out_features = end - begin,
                       .dtype = DType::kF32,
                       .scales = std::span(scales).subspan(begin * kept.groups(),
                                                           (end - begin) * kept.groups())});
    }
  }

  // Both give the same bits.
  void Check(TestDevice& device, const void* input, int64_t rows) const {
    Layer layer, wide_layer;
    ASSERT_NO_FATAL_FAILURE(MakeLayer(device, kept, parts, &layer));
    ASSERT_NO_FATAL_FAILURE(MakeLayer(
        device, wide, {{wide_numbers.data(), wide.out_features, DType::kBF16}}, &wide_layer));
    const auto actual = Multiply(device, layer, input, rows);
    const auto expected = Multiply(device, wide_layer, input, rows);
    ASSERT_EQ(0, std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(float)))
        << "K " << kept.in_features << ", N " << kept.out_features << ", " << rows
        << " rows, groups of " << kept.group << (kept.segmented ? ", segmented" : "");
  }
};

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_FP8_CASE_H_
