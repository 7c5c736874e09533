// What a linear layer does besides multiplying has the bits of the operations that would come
// behind it, Add and the scalar functions: by every kernel that finishes outputs. Seeds are the
// caller's.

#ifndef TANDEM_TESTS_KERNELS_FUSED_LINEAR_H_
#define TANDEM_TESTS_KERNELS_FUSED_LINEAR_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/api/linear.h"
#include "kernels/support/float_environment.h"
#include "kernels/support/vector_math.h"
#include "runtime/base/random.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"
#include "tests/support/sample_only.h"

namespace tandem {

// Numbers of several magnitudes, so that where a sum is rounded shows.
inline std::vector<float> AnyFloats(int64_t count, Random* random) {
  std::vector<float> numbers(count);
  for (float& x : numbers) {
    x = std::ldexp(static_cast<float>(random->Unit()) - 0.5f, static_cast<int>(random->Below(8)));
  }
  return numbers;
}

inline std::vector<std::byte> AnyNumbers(DType dtype, int64_t count, Random* random) {
  const std::vector<float> numbers = AnyFloats(count, random);
  std::vector<std::byte> bytes(count * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const Bfloat16 narrow = ToBfloat16(numbers[i]);
    const void* const from = dtype == DType::kF32 ? static_cast<const void*>(&numbers[i]) : &narrow;
    std::memcpy(&bytes[i * SizeOf(dtype)], from, SizeOf(dtype));
  }
  return bytes;
}

inline constexpr int64_t kFusedRows[] = {0, 1, 2, 3, 8, 13, 17, 31, 64, 131, 300};
// For slow devices: of kernels for few rows, of those for many, and a part of a tile.
inline constexpr int64_t kFewFusedRows[] = {0, 1, 3, 13, 70};

using RowCounts = std::span<const int64_t>;
inline constexpr RowCounts kAnyFusedRows = kSampleOnly ? RowCounts(kFewFusedRows) : kFusedRows;

// Layers of every kind of weights in any size, and of 8 bits with outliers if `outliers` says so.
inline std::vector<LinearSpec> FusedSpecs(bool outliers, Random* random) {
  constexpr int64_t kSizes[] = {1, 2, 16, 31, 32, 33, 77, 129, 257, 400};
  std::vector<LinearSpec> specs;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    for (const WeightType type : {WeightTypeOf(compute), WeightType::kInt8, WeightType::kInt4}) {
      for (const bool segmented : {false, true}) {
        specs.push_back({.in_features = segmented ? 1100 : kSizes[random->Below(10)],
                         .out_features = kSizes[random->Below(10)],
                         .weight_type = type,
                         .compute_dtype = compute,
                         .output_dtype = DType::kF32,
                         .segmented = segmented,
                         .group = type == WeightType::kInt4 ? 64 : 0});
        if (type != WeightType::kInt8 || !outliers) continue;
        specs.push_back(specs.back());
        specs.back().outlier_threshold = 4;
      }
    }
  }
  return specs;
}

inline std::string DescribeFused(const LinearSpec& spec, int64_t rows) {
  return absl::StrFormat("K %d, N %d, weights %s, compute %s%s%s, %d rows", spec.in_features,
                         spec.out_features, NameOf(spec.weight_type), NameOf(spec.compute_dtype),
                         spec.segmented ? ", segmented" : "",
                         spec.outlier_threshold == 0 ? "" : ", outliers", rows);
}

// LinearArgs::adds_to_output is a layer and Add behind it.
inline void ExpectAddedOutputsAreThoseOfAdd(TestDevice& device, bool outliers, Random* random,
                                            RowCounts num_rows = kAnyFusedRows) {
  for (const LinearSpec& spec : FusedSpecs(outliers, random)) {
    const auto weights =
        AnyNumbers(spec.compute_dtype, spec.in_features * spec.out_features, random);
    Layer layer;
    ASSERT_NO_FATAL_FAILURE(
        MakeLayer(device, spec, {{weights.data(), spec.out_features, spec.compute_dtype}}, &layer));
    for (const int64_t rows : num_rows) {
      const auto input = AnyNumbers(spec.compute_dtype, rows * spec.in_features, random);
      const auto bias = AnyFloats(spec.out_features, random);
      const float* const bias_or_null = random->Chance(0.5) ? bias.data() : nullptr;
      std::vector<float> expected = AnyFloats(rows * spec.out_features, random);
      std::vector<float> actual = expected;
      const auto products = Multiply(device, layer, input.data(), rows, bias_or_null);
      ASSERT_OK(device.Add({.accumulator = expected.data(),
                            .addend = products.data(),
                            .count = static_cast<int64_t>(products.size())}));
      ASSERT_OK(device.Linear({.op = layer.op.get(),
                               .input = input.data(),
                               .bias = bias_or_null,
                               .output = actual.data(),
                               .num_rows = rows,
                               .adds_to_output = true}));
      if (rows == 0) continue;
      ASSERT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)), 0)
          << DescribeFused(spec, rows);
    }
  }
}

// The outputs of a layer of f32 activated as `spec` says, one by one.
inline std::vector<std::byte> Activated(const LinearSpec& spec, const std::vector<float>& outputs) {
  const KernelFloatScope scope;
  const size_t columns = spec.columns(), rows = outputs.size() / spec.out_features;
  std::vector<std::byte> bytes(rows * columns * SizeOf(spec.output_dtype));
  for (size_t i = 0; i < rows * columns; ++i) {
    const float* const gate = &outputs[i / columns * spec.out_features + i % columns];
    float y = spec.activation == ActivationFunction::kSilu ? Silu(*gate) : GeluTanh(*gate);
    if (spec.gated) y = y * gate[columns];
    const Bfloat16 narrow = ToBfloat16(y);
    const void* const from =
        spec.output_dtype == DType::kF32 ? static_cast<const void*>(&y) : &narrow;
    std::memcpy(&bytes[i * SizeOf(spec.output_dtype)], from, SizeOf(spec.output_dtype));
  }
  return bytes;
}

// LinearSpec::activation is a layer of f32 and the function behind it.
inline void ExpectActivatedOutputsAreThoseOfTheFunctions(TestDevice& device, bool outliers,
                                                         Random* random,
                                                         RowCounts num_rows = kAnyFusedRows) {
  for (LinearSpec spec : FusedSpecs(outliers, random)) {
    LinearSpec activated = spec;
    activated.gated = random->Chance(0.7);
    if (activated.gated) activated.out_features = spec.out_features = 2 * spec.out_features;
    activated.activation =
        random->Chance(0.5) ? ActivationFunction::kSilu : ActivationFunction::kGeluTanh;
    activated.output_dtype = random->Chance(0.3) ? DType::kF32 : spec.compute_dtype;
    const DType dtype = spec.compute_dtype;
    const auto weights = AnyNumbers(dtype, spec.in_features * spec.out_features, random);
    // Parts end anywhere.
    const int64_t first = random->Between(0, spec.out_features);
    std::vector<WeightPart> parts;
    if (first > 0) parts.push_back({weights.data(), first, dtype});
    if (first < spec.out_features) {
      parts.push_back({weights.data() + first * spec.in_features * SizeOf(dtype),
                       spec.out_features - first, dtype});
    }
    Layer layer, fused;
    ASSERT_NO_FATAL_FAILURE(MakeLayer(device, spec, parts, &layer));
    ASSERT_NO_FATAL_FAILURE(MakeLayer(device, activated, parts, &fused));
    for (const int64_t rows : num_rows) {
      const auto input = AnyNumbers(dtype, rows * spec.in_features, random);
      const auto bias = AnyFloats(spec.out_features, random);
      const float* const bias_or_null = random->Chance(0.5) ? bias.data() : nullptr;
      const auto outputs = Multiply(device, layer, input.data(), rows, bias_or_null);
      const std::vector<std::byte> expected = Activated(activated, outputs);
      std::vector<std::byte> actual(expected.size());
      ASSERT_OK(device.Linear({.op = fused.op.get(),
                               .input = input.data(),
                               .bias = bias_or_null,
                               .output = actual.data(),
                               .num_rows = rows}));
      ASSERT_EQ(actual, expected) << DescribeFused(spec, rows)
                                  << (activated.gated ? ", gated" : "");
    }
  }
}

// RmsNormLinear and LayerNormLinear are a norm and a layer behind it.
inline void ExpectNormedInputsAreThoseOfTheNorm(TestDevice& device, Random* random,
                                                RowCounts num_rows = kAnyFusedRows) {
  std::vector<LinearSpec> specs = FusedSpecs(/*outliers=*/false, random);
  // Longer than what a norm has of a row at once.
  specs.push_back({.in_features = 8193 + static_cast<int64_t>(random->Below(600)),
                   .out_features = 3,
                   .weight_type = WeightType::kInt8,
                   .compute_dtype = random->Chance(0.5) ? DType::kF32 : DType::kBF16,
                   .output_dtype = DType::kF32});
  for (const LinearSpec& spec : specs) {
    const int64_t in = spec.in_features;
    const auto weights = AnyNumbers(spec.compute_dtype, in * spec.out_features, random);
    Layer layer;
    ASSERT_NO_FATAL_FAILURE(
        MakeLayer(device, spec, {{weights.data(), spec.out_features, spec.compute_dtype}}, &layer));
    for (const int64_t rows : num_rows) {
      if (in > 8192 && rows > 3) continue;
      std::vector<float> input = AnyFloats(rows * in, random);
      if (rows > 1) std::fill_n(input.begin() + in, in, 0.0f);
      if (rows > 2) input[2 * in + random->Below(in)] = std::numeric_limits<float>::infinity();
      const auto weight = AnyFloats(in, random), norm_bias = AnyFloats(in, random);
      const auto bias = AnyFloats(spec.out_features, random);
      const bool centers = random->Chance(0.5);
      std::vector<std::byte> normed(rows * in * SizeOf(spec.compute_dtype));
      std::vector<float> outputs[2];
      for (const bool fused : {false, true}) {
        outputs[fused].assign(rows * spec.out_features, -1.0f);
        const HostLinearArgs args{.op = layer.op.get(),
                                  .input = normed.data(),
                                  .bias = bias.data(),
                                  .output = outputs[fused].data(),
                                  .num_rows = rows};
        const HostRmsNormArgs rms{.input = input.data(),
                                  .weight = weight.data(),
                                  .output = normed.data(),
                                  .num_rows = rows,
                                  .features = in,
                                  .epsilon = 1e-5f,
                                  .output_dtype = spec.compute_dtype};
        const HostLayerNormArgs centered{.input = input.data(),
                                         .weight = weight.data(),
                                         .bias = norm_bias.data(),
                                         .output = normed.data(),
                                         .num_rows = rows,
                                         .features = in,
                                         .epsilon = 1e-5f,
                                         .output_dtype = spec.compute_dtype};
        if (fused) {
          // What the norm wrote before is not read.
          std::ranges::fill(normed, std::byte{0xFF});
          ASSERT_OK(centers ? device.LayerNormLinear(centered, args)
                            : device.RmsNormLinear(rms, args));
        } else {
          ASSERT_OK(centers ? device.LayerNorm(centered) : device.RmsNorm(rms));
          ASSERT_OK(device.Linear(args));
        }
      }
      if (rows == 0) continue;
      ASSERT_EQ(
          std::memcmp(outputs[0].data(), outputs[1].data(), outputs[0].size() * sizeof(float)), 0)
          << DescribeFused(spec, rows) << (centers ? ", centred" : "");
    }
  }
}

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_FUSED_LINEAR_H_
