// Linear layers against the reference over odd shapes, and their bits over rows, threads and
// methods.

#include "kernels/api/linear.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/cpu/kernel_table.h"
#include "tests/kernels/kernel_test_support.h"

namespace tandem {
namespace {

// A packed layer and what owns its bytes.
struct Layer {
  PinnedBuffer packed;
  DeviceBuffer placed;
  std::unique_ptr<LinearOp> op;
};

void MakeLayer(TestDevice& device, const LinearSpec& spec, const std::vector<WeightPart>& parts,
               Layer* layer) {
  const auto format = device.backend().GetPackedFormat(spec);
  ASSERT_TRUE(format.ok()) << format.status();
  const size_t bytes = format->size_bytes;
  auto packed = device.backend().AllocatePinned(bytes);
  ASSERT_TRUE(packed.ok()) << packed.status();
  layer->packed = *std::move(packed);
  // What was in the memory must not matter.
  std::memset(layer->packed.data(), 0xFF, bytes);
  ASSERT_OK(device.backend().PackLinear(spec, parts, {layer->packed.data(), bytes}));
  auto placed = device.backend().PlaceWeights({layer->packed.data(), bytes});
  ASSERT_TRUE(placed.ok()) << placed.status();
  layer->placed = *std::move(placed);
  auto op = device.backend().PrepareLinear(spec, layer->placed.data(), bytes);
  ASSERT_TRUE(op.ok()) << op.status();
  layer->op = *std::move(op);
}

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
};

TEST_P(LinearTest, MatchesReferenceOnRandomShapes) {
  constexpr int64_t kSizes[] = {1, 2, 3, 16, 31, 32, 33, 64, 127, 128, 129, 257, 400, 1025};
  for (int i = 0; i < 80; ++i) {
    LinearSpec spec{.in_features = kSizes[random_->Below(14)],
                    .out_features = kSizes[random_->Below(13)],
                    .compute_dtype = AnyDType()};
    spec.weight_type = random_->Chance(0.5) ? WeightType::kInt8 : WeightTypeOf(spec.compute_dtype);
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
    // Sums of 8 bits are exact, and what is done with them rounds alike everywhere.
    if (spec.weight_type == WeightType::kInt8) {
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
                                                {DType::kBF16, WeightType::kInt8}};
  for (const auto& [dtype, weight_type] : types) {
    for (const bool segmented : {false, true}) {
      const LinearSpec spec{.in_features = 1037,
                            .out_features = 205,
                            .weight_type = weight_type,
                            .compute_dtype = dtype,
                            .output_dtype = DType::kF32,
                            .segmented = segmented};
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

// The largest sum of the longest row.
TEST_P(LinearTest, EightBitsDoNotOverflow) {
  const LinearSpec spec{.in_features = 1 << 17,
                        .out_features = 2,
                        .weight_type = WeightType::kInt8,
                        .compute_dtype = DType::kF32,
                        .output_dtype = DType::kF32};
  std::vector<float> weights(2 * spec.in_features, 127.0f);
  std::fill_n(weights.begin(), spec.in_features, -127.0f);
  const std::vector<float> input(spec.in_features, 127.0f);
  std::vector<float> output(2);
  Layer layer;
  ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, spec, {{weights.data(), 2, DType::kF32}}, &layer));
  ASSERT_OK(device_->Linear(
      {.op = layer.op.get(), .input = input.data(), .output = output.data(), .num_rows = 1}));
  const auto sum = static_cast<float>(int64_t{127} * 127 << 17);
  EXPECT_EQ(output[0], -sum);
  EXPECT_EQ(output[1], sum);
}

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

INSTANTIATE_TEST_SUITE_P(All, LinearTest, testing::ValuesIn(TestedDevices()), DeviceName);
INSTANTIATE_TEST_SUITE_P(Fenced, LinearTest, testing::Values("fenced"), DeviceName);

#if defined(__x86_64__)
TEST(LinearMethodsTest, Vdpbf16psAndFusedMultiplyAddsGiveTheSameBits) {
  const auto dot = MakeDevice("cpu-avx512bf16-dot");
  const auto fma = MakeDevice("cpu-avx512bf16-fma");
  if (dot == nullptr) GTEST_SKIP() << "avx512bf16 is not on this machine";
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

GemmKernels Bf16Gemm(Bf16Method method) {
  return Avx512Bf16Kernels(method)->gemm[static_cast<int>(DType::kBF16)];
}

TEST(LinearMethodsTest, AFasterMethodWithOtherBitsIsNotPicked) {
  if (Avx512Bf16Kernels(Bf16Method::kDot) == nullptr) {
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
