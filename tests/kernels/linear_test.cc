// Linear layers against the reference over odd shapes, and their bits over rows, threads and
// methods.

#include "kernels/api/linear.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/api/half.h"
#include "kernels/cpu/kernel_table_x86.h"
#include "tests/kernels/fp8_case.h"
#include "tests/kernels/fused_linear.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"

namespace tandem {
namespace {

std::string Describe(const LinearSpec& spec) {
  return absl::StrFormat("K %d, N %d, weights %s, compute %s, output %s%s", spec.in_features,
                         spec.out_features, NameOf(spec.weight_type), NameOf(spec.compute_dtype),
                         NameOf(spec.output_dtype), spec.segmented ? ", segmented" : "");
}

class LinearTest : public DeviceTest {
 protected:
  void Run(TestDevice& device, const LinearSpec& spec, const std::vector<WeightPart>& parts,
           const std::vector<std::byte>& input, int64_t rows, const float* bias,
           std::vector<std::byte>* output) {
    Layer layer;
    ASSERT_NO_FATAL_FAILURE(MakeLayer(device, spec, parts, &layer));
    output->assign(rows * spec.out_features * SizeOf(spec.output_dtype), std::byte{0xFF});
    ASSERT_OK(device.Linear({.op = layer.op.get(),
                             .input = input.data(),
                             .bias = bias,
                             .output = output->data(),
                             .num_rows = rows}));
  }

  // A layer of f32 with weights of 4 bits, multiplied with rows of f32.
  std::vector<float> MultiplyInt4(TestDevice& device, const LinearSpec& spec,
                                  const std::vector<WeightPart>& parts,
                                  const std::vector<float>& input) {
    Layer layer;
    MakeLayer(device, spec, parts, &layer);
    if (layer.op == nullptr) return {};
    return Multiply(device, layer, input.data(),
                    static_cast<int64_t>(input.size()) / spec.in_features);
  }
};

LinearSpec Int4Spec(int64_t in_features, int64_t out_features, int64_t group) {
  return {.in_features = in_features,
          .out_features = out_features,
          .weight_type = WeightType::kInt4,
          .compute_dtype = DType::kF32,
          .output_dtype = DType::kF32,
          .group = group};
}

TEST_P(LinearTest, MatchesReferenceOnRandomShapes) {
  constexpr int64_t kSizes[] = {1, 2, 3, 16, 31, 32, 33, 64, 127, 128, 129, 257, 400, 1025};
  for (int i = 0; i < 80; ++i) {
    LinearSpec spec{.in_features = kSizes[random_->Below(14)],
                    .out_features = kSizes[random_->Below(13)],
                    .compute_dtype = AnyDType()};
    const WeightType types[] = {WeightTypeOf(spec.compute_dtype), WeightType::kInt8,
                                WeightType::kInt4};
    spec.weight_type = types[random_->Below(3)];
    if (spec.weight_type == WeightType::kInt4) spec.group = 32 << random_->Below(3);
    spec.output_dtype = random_->Chance(0.5) ? DType::kF32 : spec.compute_dtype;
    spec.layout = random_->Chance(0.5) ? WeightLayout::kOutIn : WeightLayout::kInOut;
    spec.segmented = random_->Chance(0.5);
    const int64_t rows = random_->Chance(0.3) ? 1 : Between(0, 40);
    std::vector<std::vector<std::byte>> weights;
    std::vector<WeightPart> parts;
    for (int64_t left = spec.out_features; left > 0;) {
      const int64_t taken = random_->Chance(0.5) ? left : Between(1, left);
      const DType dtype = AnyDType();
      weights.push_back(Array(dtype, taken * spec.in_features, 0.1f));
      parts.push_back({weights.back().data(), taken, dtype});
      left -= taken;
    }
    const auto input = Array(spec.compute_dtype, rows * spec.in_features);
    const auto bias = Floats(spec.out_features);
    const float* bias_or_null = random_->Chance(0.5) ? bias.data() : nullptr;
    std::vector<std::byte> expected, actual;
    ASSERT_NO_FATAL_FAILURE(Run(*reference_, spec, parts, input, rows, bias_or_null, &expected));
    ASSERT_NO_FATAL_FAILURE(Run(*device_, spec, parts, input, rows, bias_or_null, &actual));
    // Sums of 8 and 4 bits are exact, and what is done with them rounds alike everywhere.
    if (spec.weight_type != WeightTypeOf(spec.compute_dtype)) {
      ASSERT_EQ(actual, expected) << Describe(spec) << ", " << rows << " rows";
      continue;
    }
    // Rounding once more may move a bf16 output by one unit in its last place. Tensor cores cut off
    // where others round.
    const float relative = spec.output_dtype == DType::kBF16 ? 0.0079f : 1e-5f;
    const float absolute = GetParam() == "cuda-tensor" ? 1e-4f : 2e-5f;
    ASSERT_TRUE(Near(spec.output_dtype, actual, expected, absolute, relative))
        << Describe(spec) << ", " << rows << " rows";
  }
}

TEST_P(LinearTest, ARowHasTheSameBitsInAnyBatchAndOnAnyNumberOfThreads) {
  const std::pair<DType, WeightType> types[] = {{DType::kF32, WeightType::kF32},
                                                {DType::kBF16, WeightType::kBF16},
                                                {DType::kBF16, WeightType::kInt8},
                                                {DType::kBF16, WeightType::kInt4}};
  for (const auto& [dtype, weight_type] : types) {
    const bool int4 = weight_type == WeightType::kInt4;
    for (const bool segmented : {false, true}) {
      const LinearSpec spec{.in_features = 1037,
                            .out_features = 205,
                            .weight_type = weight_type,
                            .compute_dtype = dtype,
                            .output_dtype = DType::kF32,
                            .segmented = segmented,
                            .group = int4 ? 64 : 0};
      constexpr int64_t kRows = 403;
      const auto weights = Array(dtype, spec.in_features * spec.out_features, 0.1f);
      const std::vector<WeightPart> parts = {{weights.data(), spec.out_features, dtype}};
      const auto input = Array(dtype, kRows * spec.in_features);
      std::vector<std::byte> together;
      ASSERT_NO_FATAL_FAILURE(Run(*device_, spec, parts, input, kRows, nullptr, &together));
      const int64_t row_bytes = spec.in_features * static_cast<int64_t>(SizeOf(dtype));
      for (const int threads : {1, 2, 3}) {
        const auto backend = MakeDevice(GetParam(), threads);
        Layer layer;
        ASSERT_NO_FATAL_FAILURE(MakeLayer(*backend, spec, parts, &layer));
        for (const int64_t batch : {1, 2, 3, 4, 5, 7, 12, 13, 16, 64, 191, 193, 403}) {
          for (int64_t first = 0; first + batch <= kRows; first += std::max<int64_t>(batch, 67)) {
            std::vector<std::byte> output(batch * spec.out_features * 4);
            ASSERT_OK(backend->Linear({.op = layer.op.get(),
                                       .input = input.data() + first * row_bytes,
                                       .output = output.data(),
                                       .num_rows = batch}));
            ASSERT_EQ(0, std::memcmp(output.data(), together.data() + first * spec.out_features * 4,
                                     output.size()))
                << batch << " rows from " << first << ", " << threads << " threads";
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, OutputsThatAreAddedHaveTheBitsOfAddBehind) {
  ExpectAddedOutputsAreThoseOfAdd(*device_, HasOutliers(GetParam()), random_.get());
  const auto on_threads = MakeDevice(GetParam(), /*num_threads=*/3);
  ExpectAddedOutputsAreThoseOfAdd(*on_threads, HasOutliers(GetParam()), random_.get());
}

TEST_P(LinearTest, ActivatedOutputsHaveTheBitsOfTheFunctionsBehind) {
  ExpectActivatedOutputsAreThoseOfTheFunctions(*device_, HasOutliers(GetParam()), random_.get());
  const auto on_threads = MakeDevice(GetParam(), /*num_threads=*/3);
  ExpectActivatedOutputsAreThoseOfTheFunctions(*on_threads, HasOutliers(GetParam()), random_.get());
}

TEST_P(LinearTest, NormedInputsHaveTheBitsOfTheNormBefore) {
  ExpectNormedInputsAreThoseOfTheNorm(*device_, random_.get());
}

// So that a slow layer never looks like one that hangs.
TEST_P(LinearTest, ALargeLayerShowsWorkManyTimes) {
  const LinearSpec spec{.in_features = 1024,
                        .out_features = 4096,
                        .weight_type = WeightType::kF32,
                        .compute_dtype = DType::kF32};
  const auto weights = Array(DType::kF32, spec.out_features * spec.in_features, 0.1f);
  const auto input = Array(DType::kF32, spec.in_features);
  const uint64_t before = device_->backend().work_done();
  std::vector<std::byte> output;
  ASSERT_NO_FATAL_FAILURE(Run(*device_, spec, {{weights.data(), spec.out_features, DType::kF32}},
                              input, /*rows=*/1, nullptr, &output));
  const uint64_t least = device_->backend().name() == "cuda" ? 1 : 8;
  EXPECT_GE(device_->backend().work_done() - before, least);
}

TEST_P(LinearTest, SegmentsAreSummedInAFixedPairwiseTree) {
  // Each eighth of K as a layer of its own, added in the tree, gives the bits of the whole: what
  // the ranks of a tensor-parallel group will do.
  const LinearSpec whole{.in_features = 2048,
                         .out_features = 40,
                         .weight_type = WeightType::kBF16,
                         .compute_dtype = DType::kBF16,
                         .output_dtype = DType::kF32,
                         .segmented = true};
  const auto weights = Array(DType::kBF16, whole.in_features * whole.out_features, 0.1f);
  const auto input = Array(DType::kBF16, whole.in_features);
  std::vector<std::byte> expected;
  ASSERT_NO_FATAL_FAILURE(Run(*device_, whole, {{weights.data(), whole.out_features, DType::kBF16}},
                              input, 1, nullptr, &expected));
  std::vector<float> sums[8];
  for (int segment = 0; segment < 8; ++segment) {
    LinearSpec part = whole;
    part.segmented = false;
    part.in_features = 256;
    std::vector<std::byte> slice;
    for (int64_t n = 0; n < whole.out_features; ++n) {
      const auto begin = weights.begin() + (n * 2048 + segment * 256) * 2;
      slice.insert(slice.end(), begin, begin + 512);
    }
    const std::vector<std::byte> x(input.begin() + segment * 512,
                                   input.begin() + (segment + 1) * 512);
    std::vector<std::byte> output;
    ASSERT_NO_FATAL_FAILURE(Run(*device_, part, {{slice.data(), part.out_features, DType::kBF16}},
                                x, 1, nullptr, &output));
    for (int64_t n = 0; n < whole.out_features; ++n) {
      sums[segment].push_back(At(DType::kF32, output, n));
    }
  }
  for (int64_t n = 0; n < whole.out_features; ++n) {
    const float left = (sums[0][n] + sums[1][n]) + (sums[2][n] + sums[3][n]);
    const float right = (sums[4][n] + sums[5][n]) + (sums[6][n] + sums[7][n]);
    EXPECT_EQ(At(DType::kF32, expected, n), left + right) << n;
  }
}

// A number is q · absmax / 127, rounded once, whatever else a row or an output holds.
TEST_P(LinearTest, EightBitsHaveAScaleARowAndOneAnOutput) {
  const LinearSpec spec{.in_features = 3,
                        .out_features = 4,
                        .weight_type = WeightType::kInt8,
                        .compute_dtype = DType::kF32,
                        .output_dtype = DType::kF32};
  // Scales 1, 2, 0 and 1 / 127; 0.5 and 2.5 are ties, to the even one.
  const std::vector<float> weights = {127, 1, -2, 254, 2, 1, 0, 0, 0, 1, 0, -1};
  const std::vector<float> input = {127, 2.5f, 0.5f, 0, 0, 0, 63.5f, -0.5f, 0.25f};
  std::vector<float> output(12);
  Layer layer;
  ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, spec, {{weights.data(), 4, DType::kF32}}, &layer));
  ASSERT_OK(device_->Linear(
      {.op = layer.op.get(), .input = input.data(), .output = output.data(), .num_rows = 3}));
  const float tiny = 1.0f / 127;
  EXPECT_EQ(output, (std::vector<float>{127 * 127 + 2, 2 * (127 * 127 + 2), 0, (127 * 127) * tiny,
                                        0, 0, 0, 0,  //
                                        0.5f * (127 * 127 - 1), (0.5f * (127 * 127 - 1)) * 2, 0,
                                        (0.5f * (127 * 127)) * tiny}));
}

TEST_P(LinearTest, EightBitsDoNotOverflow) { ExpectTheLargestInt8Sums(*device_); }

TEST_P(LinearTest, WhatIsNoNumberIsNoneInEightBits) {
  const LinearSpec spec{.in_features = 5,
                        .out_features = 3,
                        .weight_type = WeightType::kInt8,
                        .compute_dtype = DType::kF32,
                        .output_dtype = DType::kF32};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> weights = {1, 2, 3, 4, 5, NAN, 2, 3, 4, 5, 1, 2, 3, -kInfinity, 5};
  const std::vector<float> input = {1, 1, 1, 1, 1, 1, NAN, 1, 1, 1, 1, 1, kInfinity, 1, 1};
  std::vector<float> output(9);
  Layer layer;
  ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, spec, {{weights.data(), 3, DType::kF32}}, &layer));
  ASSERT_OK(device_->Linear(
      {.op = layer.op.get(), .input = input.data(), .output = output.data(), .num_rows = 3}));
  EXPECT_TRUE(std::isfinite(output[0]));
  for (int i = 1; i < 9; ++i) EXPECT_FALSE(std::isfinite(output[i])) << i;
}

// A group is from its lowest number, or 0, to its highest in 15.5 steps, whatever others hold.
TEST_P(LinearTest, FourBitsHaveAScaleAndAZeroAGroup) {
  // Outputs of two groups: 32 inputs, and 3.
  std::vector<float> weights(3 * 35);
  weights[0] = -2;     // Steps of 0.5 from -2 (zero 4) to 5.5.
  weights[1] = 5.75f;  // This one is past the last.
  weights[2] = 0.25f;  // Ties, to the even one.
  weights[3] = 0.75f;
  weights[32] = 15.5f;  // Steps of 1 from 0.
  weights[33] = 7;
  weights[35 + 0] = -31;  // Steps of 2 from -30 up to 0 (zero 15); the other group is none.
  weights[35 + 4] = -9;
  weights[70] = 1.0f / 3;  // The half next to 1 / 46.5 is 0x1.604p-6.
  weights[70 + 34] = -1;   // To 1 / 15.5 it is 0x1.084p-4.
  std::vector<float> input(2 * 35);
  for (int i = 0; i < 35; ++i) input[i] = static_cast<float>(i == 4 ? 100 : i % 7);
  input[34] = 127;         // The scale of the row is 1,
  input[35 + 32] = 63.5f;  // of the other 0.5.
  input[35 + 0] = 1;
  const LinearSpec spec = Int4Spec(35, 3, 32);
  const auto output = MultiplyInt4(*device_, spec, {{weights.data(), 3, DType::kF32}}, input);
  // The first row is 0 1 2 3 100 …, 4 5 127, the second 2 and 127 halves.
  EXPECT_EQ(output,
            (std::vector<float>{(11 + 0 * 2 + 2 * 3) * 0.5f + (4 * 15 + 5 * 7), (-4 * 100) * 2.0f,
                                (127 * -15) * 0x1.084p-4f,  //
                                ((-4 * 2) * 0.5f + 127 * 15) * 0.5f, ((-15 * 2) * 2.0f) * 0.5f,
                                ((15 * 2) * 0x1.604p-6f) * 0.5f}));
}

// Parts that come in 4 bits: (q - zero) · scale, in an order and with zeros of their own.
TEST_P(LinearTest, FourBitsThatComeWithScalesAndZerosAreTheseNumbers) {
  for (const int64_t group : kInt4Groups) {
    for (const bool segmented : {false, true}) {
      LinearSpec spec = Int4Spec(1024, 75, group);
      spec.scaled = true;
      spec.segmented = segmented;
      const int64_t groups = spec.in_features / group;
      std::vector<uint8_t> q(spec.out_features * spec.in_features);
      std::vector<uint8_t> zeros(spec.out_features * groups);
      std::vector<float> scales(zeros.size());
      for (uint8_t& number : q) number = static_cast<uint8_t>(random_->Below(16));
      for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(random_->Below(17));
      for (float& scale : scales) scale = static_cast<float>(Between(-64, 64)) / 64;
      constexpr int64_t kFirst = 41;  // Outputs of the first part.
      const std::vector<WeightPart> parts = {
          {q.data(),
           kFirst,
           DType::kF32,
           {scales.data(), kFirst * static_cast<size_t>(groups)},
           {zeros.data(), kFirst * static_cast<size_t>(groups)}},
          {q.data() + kFirst * spec.in_features, spec.out_features - kFirst, DType::kF32,
           std::span(scales).subspan(kFirst * groups), std::span(zeros).subspan(kFirst * groups)}};
      // Whole numbers, so that every sum here is exact.
      std::vector<float> input(2 * spec.in_features);
      for (float& x : input) x = static_cast<float>(Between(-9, 9));
      for (int64_t i = 0; i < 2 * spec.in_features; i += 128) input[i] = 127;
      const auto output = MultiplyInt4(*device_, spec, parts, input);
      ASSERT_EQ(output.size(), 2u * 75);
      for (int64_t r = 0; r < 2; ++r) {
        for (int64_t n = 0; n < spec.out_features; ++n) {
          double sum = 0;
          for (int64_t k = 0; k < spec.in_features; ++k) {
            const int64_t at = n * groups + k / group;
            sum += static_cast<double>(scales[at]) * (q[n * spec.in_features + k] - zeros[at]) *
                   input[r * spec.in_features + k];
          }
          ASSERT_EQ(output[r * spec.out_features + n], sum) << group << ", " << r << ", " << n;
        }
      }
    }
  }
}

TEST_P(LinearTest, WeightsOf8BitFloatsHaveTheBitsOfTheirProductsInBf16OrAreRefused) {
  for (int i = 0; i < 40; ++i) {
    const Fp8Case fp8(random_.get(), i);
    const int64_t rows = Between(1, 300);
    const auto input = Array(DType::kBF16, rows * fp8.kept.in_features);
    ASSERT_NO_FATAL_FAILURE(fp8.Check(*reference_, input.data(), std::min<int64_t>(rows, 3)));
    const auto format = device_->backend().GetPackedFormat(fp8.kept);
    ASSERT_EQ(format.ok(), GetParam() == "cuda-tensor") << format.status();
    if (format.ok()) {
      ASSERT_NO_FATAL_FAILURE(fp8.Check(*device_, input.data(), rows));
    } else {
      ASSERT_TRUE(absl::IsFailedPrecondition(format.status())) << format.status();
      ASSERT_NE(format.status().ToString().find("type fp8"), std::string::npos);
    }
  }
}

// Denormal and negative ones, infinities and NaNs, too.
TEST_P(LinearTest, EveryScaleOfHalfPrecisionIsUsedAsItIs) {
  constexpr int64_t kHalves = 1 << 16;
  LinearSpec spec = Int4Spec(1, kHalves, 128);
  spec.scaled = true;
  const std::vector<uint8_t> q(kHalves, 9), zeros(kHalves, 8);
  std::vector<float> scales;
  for (int64_t i = 0; i < kHalves; ++i) {
    scales.push_back(ToFloat(Half{static_cast<uint16_t>(i)}));
  }
  const auto output =
      MultiplyInt4(*device_, spec, {{q.data(), kHalves, DType::kF32, scales, zeros}}, {127.0f});
  for (int64_t i = 0; i < kHalves; ++i) {
    const bool is_none = std::isnan(scales[i]);
    ASSERT_TRUE(is_none ? std::isnan(output[i]) : output[i] == 127 * scales[i]) << i;
  }
}

TEST_P(LinearTest, WhatIsNoNumberIsNoneInFourBits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> weights = {1, 2, 3, 4, 5, NAN, 2, 3, 4, 5, 1, 2, 3, -kInfinity, 5};
  const std::vector<float> input = {1, 1, 1, 1, 1, 1, NAN, 1, 1, 1, 1, 1, kInfinity, 1, 1};
  const auto output =
      MultiplyInt4(*device_, Int4Spec(5, 3, 32), {{weights.data(), 3, DType::kF32}}, input);
  ASSERT_EQ(output.size(), 9u);
  EXPECT_TRUE(std::isfinite(output[0]));
  for (int i = 1; i < 9; ++i) EXPECT_FALSE(std::isfinite(output[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(All, LinearTest, testing::ValuesIn(TestedDevices()), DeviceName);
INSTANTIATE_TEST_SUITE_P(Fenced, LinearTest, testing::Values("fenced"), DeviceName);

// Gates and ups of one panel are other bytes than gates before ups.
TEST(CpuLinearTest, AGatedLayerIsPackedUnderAnotherName) {
  const auto cpu = MakeDevice("cpu-generic");
  LinearSpec spec = Int4Spec(64, 64, 32);
  spec.activation = ActivationFunction::kSilu;
  const std::string plain = cpu->backend().GetPackedFormat(spec)->id;
  spec.gated = true;
  EXPECT_NE(cpu->backend().GetPackedFormat(spec)->id, plain);
}

TEST(ReferenceLinearTest, WhatIsFusedHasTheBitsOfOperationsBehind) {
  const auto reference = MakeDevice("reference");
  Random random(7);
  ExpectAddedOutputsAreThoseOfAdd(*reference, /*outliers=*/true, &random, kFewFusedRows);
  ExpectActivatedOutputsAreThoseOfTheFunctions(*reference, /*outliers=*/true, &random,
                                               kFewFusedRows);
}

#if defined(__x86_64__)
GemmKernels Bf16Gemm(Bf16Method method) {
  return *Avx512Bf16Kernels(method, Int8Method::kDot)->FindGemm(WeightType::kBF16, DType::kBF16);
}

TEST(LinearMethodsTest, Vdpbf16psAndFusedMultiplyAddsGiveTheSameBits) {
  const auto dot = MakeDevice("cpu-avx512bf16-dot");
  const auto fma = MakeDevice("cpu-avx512bf16-fma");
  if (dot == nullptr) GTEST_SKIP() << "avx512bf16 is not on this machine";
  ASSERT_NE(Bf16Gemm(Bf16Method::kDot).run, Bf16Gemm(Bf16Method::kFma).run);
  Random random(5);
  const LinearSpec spec{.in_features = 301,
                        .out_features = 77,
                        .weight_type = WeightType::kBF16,
                        .compute_dtype = DType::kBF16,
                        .output_dtype = DType::kF32,
                        .segmented = true};
  // Every exponent: denormals, overflow, infinities. (NaN payloads may differ, so no NaN inputs;
  // results that are NaN are compared as such.)
  const auto any_bf16 = [&](int64_t count) {
    std::vector<uint16_t> values(count);
    for (uint16_t& v : values) {
      do v = static_cast<uint16_t>(random.Next());
      while ((v & 0x7F80) == 0x7F80);
      if (random.Chance(0.7)) v = static_cast<uint16_t>((v & 0x807F) | (random.Below(80) << 7));
    }
    return values;
  };
  const auto weights = any_bf16(spec.in_features * spec.out_features);
  const auto input = any_bf16(50 * spec.in_features);
  std::vector<float> outputs[2];
  for (int i = 0; i < 2; ++i) {
    TestDevice& device = i == 0 ? *dot : *fma;
    Layer layer;
    ASSERT_NO_FATAL_FAILURE(
        MakeLayer(device, spec, {{weights.data(), spec.out_features, DType::kBF16}}, &layer));
    outputs[i].resize(50 * spec.out_features);
    ASSERT_OK(device.Linear({.op = layer.op.get(),
                             .input = input.data(),
                             .output = outputs[i].data(),
                             .num_rows = 50}));
  }
  int numbers = 0;
  for (size_t i = 0; i < outputs[0].size(); ++i) {
    if (std::isnan(outputs[0][i]) && std::isnan(outputs[1][i])) continue;
    numbers += std::isfinite(outputs[0][i]);
    ASSERT_EQ(std::bit_cast<uint32_t>(outputs[0][i]), std::bit_cast<uint32_t>(outputs[1][i])) << i;
  }
  EXPECT_GT(numbers, 100);
}

TEST(LinearMethodsTest, AFasterMethodWithOtherBitsIsNotPicked) {
  if (Avx512Bf16Kernels(Bf16Method::kDot, Int8Method::kDot) == nullptr) {
    GTEST_SKIP() << "avx512bf16 is not on this machine";
  }
  GemmKernels slow = Bf16Gemm(Bf16Method::kDot);
  slow.run = [](const GemmTask& task) {
    for (int i = 0; i < 20; ++i) Bf16Gemm(Bf16Method::kDot).run(task);
  };
  // Off by one unit in the last place of one sum.
  GemmKernels wrong = Bf16Gemm(Bf16Method::kFma);
  wrong.run = [](const GemmTask& task) {
    Bf16Gemm(Bf16Method::kFma).run(task);
    static_cast<uint32_t*>(task.output)[task.num_outputs - 1] ^= 1;
  };
  EXPECT_EQ(PickBf16Method(slow, wrong), Bf16Method::kDot);
}
#endif  // __x86_64__

TEST(LinearSegmentsTest, BordersAreMultiplesOf128AndCoverK) {
  for (const int64_t in_features : {1, 127, 128, 256, 768, 1000, 2048, 5632, 11008}) {
    EXPECT_EQ(LinearSegmentBegin(in_features, 0), 0);
    EXPECT_EQ(LinearSegmentBegin(in_features, 8), in_features);
    for (int i = 1; i < 8; ++i) {
      const int64_t border = LinearSegmentBegin(in_features, i);
      EXPECT_EQ(border % 128, 0);
      EXPECT_GE(border, LinearSegmentBegin(in_features, i - 1));
      EXPECT_LE(border, i * in_features / 8);
    }
  }
  EXPECT_EQ(LinearSegmentBegin(2048, 3), 768);
  EXPECT_EQ(LinearSegmentBegin(5632, 1), 640);  // 704 rounded down
}

}  // namespace
}  // namespace tandem
