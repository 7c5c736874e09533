// Layers of 8 bits whose inputs have outliers, against the reference bit by bit; seeds are printed.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/probe/hostile_numbers.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

LinearSpec Spec(int64_t in_features, int64_t out_features, float threshold,
                DType compute = DType::kF32) {
  return {.in_features = in_features,
          .out_features = out_features,
          .weight_type = WeightType::kInt8,
          .compute_dtype = compute,
          .output_dtype = DType::kF32,
          .outlier_threshold = threshold};
}

class OutliersTest : public DeviceTest {
 protected:
  void SetUp() override {
    if (!HasOutliers(GetParam())) GTEST_SKIP() << "refused: CreateBackendTest";
    DeviceTest::SetUp();
  }

  // Rows of `dtype` in which some inputs, the same ones in most rows, are up to a hundred times as
  // large as others. Every fifth row has none.
  std::vector<std::byte> HeavyTailed(DType dtype, int64_t rows, int64_t in_features) {
    std::vector<float> factors(in_features, 1.0f);
    const int64_t large = random_->Chance(0.2) ? in_features / 2 : in_features / 50 + 1;
    for (int64_t i = 0; i < large; ++i) {
      factors[random_->Below(in_features)] = static_cast<float>(Between(20, 100));
    }
    std::vector<float> numbers;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < in_features; ++k) {
        numbers.push_back(Normal() * (r % 5 == 4 || random_->Chance(0.1) ? 1.0f : factors[k]));
      }
    }
    return In(dtype, numbers);
  }

  static std::vector<std::byte> In(DType dtype, const std::vector<float>& numbers) {
    std::vector<std::byte> bytes(numbers.size() * SizeOf(dtype));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const Bfloat16 narrow = ToBfloat16(numbers[i]);
      if (dtype == DType::kF32) {
        std::memcpy(&bytes[i * 4], &numbers[i], 4);
      } else {
        std::memcpy(&bytes[i * 2], &narrow, 2);
      }
    }
    return bytes;
  }

  // An f32 row and weights of f32, [outputs, inputs].
  std::vector<float> Products(float threshold, const std::vector<float>& weights,
                              const std::vector<float>& row) {
    const auto inputs = static_cast<int64_t>(row.size());
    const auto outputs = static_cast<int64_t>(weights.size()) / inputs;
    Layer layer;
    MakeLayer(*device_, Spec(inputs, outputs, threshold), {{weights.data(), outputs, DType::kF32}},
              &layer);
    return layer.op == nullptr ? std::vector<float>()
                               : Multiply(*device_, layer, row.data(), /*rows=*/1);
  }
};

TEST_P(OutliersTest, MatchesReferenceBitByBitOnRandomShapes) {
  constexpr int64_t kInputs[] = {1, 2, 3, 5, 16, 31, 64, 127, 130, 257, 400, 1025, 1536, 2051};
  constexpr int64_t kOutputs[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 75, 128, 200};
  // The last is all inputs' but those of zero, the first next to none's.
  constexpr float kThresholds[] = {200.0f, 6.0f, 6.0f, 2.5f, 1e-20f};
  int with_outliers = 0;
  for (int i = 0; i < 120; ++i) {
    LinearSpec spec = Spec(kInputs[random_->Below(std::size(kInputs))],
                           kOutputs[random_->Below(std::size(kOutputs))],
                           kThresholds[random_->Below(std::size(kThresholds))], AnyDType());
    spec.segmented = random_->Chance(0.5);
    spec.output_dtype = random_->Chance(0.5) ? DType::kF32 : spec.compute_dtype;
    const int64_t rows = random_->Chance(0.3) ? 1 : Between(1, 40);
    const auto weights = Floats(spec.out_features * spec.in_features, 0.1f);
    const WeightPart part{weights.data(), spec.out_features, DType::kF32};
    const auto input = HeavyTailed(spec.compute_dtype, rows, spec.in_features);
    const auto bias = Floats(spec.out_features);
    const float* bias_or_null = random_->Chance(0.5) ? bias.data() : nullptr;
    const auto expected = RunLinear(*reference_, spec, part, input, bias_or_null);
    ASSERT_EQ(RunLinear(*device_, spec, part, input, bias_or_null), expected)
        << absl::StrFormat("K %d, N %d, threshold %g, compute %s, segments %d, %d rows",
                           spec.in_features, spec.out_features, spec.outlier_threshold,
                           NameOf(spec.compute_dtype), spec.segmented, rows);
    spec.outlier_threshold = 0;
    with_outliers += RunLinear(*reference_, spec, part, input, bias_or_null) != expected;
  }
  EXPECT_GT(with_outliers, 60);
}

TEST_P(OutliersTest, ARowHasTheSameBitsInAnyBatchAndOnAnyNumberOfThreads) {
  for (const bool segmented : {false, true}) {
    LinearSpec spec = Spec(1037, 205, 6.0f, DType::kBF16);
    spec.segmented = segmented;
    constexpr int64_t kRows = 403;
    const auto weights = Floats(spec.out_features * spec.in_features, 0.1f);
    const std::vector<WeightPart> parts = {{weights.data(), spec.out_features, DType::kF32}};
    const auto input = HeavyTailed(DType::kBF16, kRows, spec.in_features);
    const auto together = RunLinear(*device_, spec, parts[0], input);
    for (const int threads : {1, 2, 3}) {
      const auto device = MakeDevice(GetParam(), threads);
      Layer layer;
      ASSERT_NO_FATAL_FAILURE(MakeLayer(*device, spec, parts, &layer));
      for (const int64_t batch : {1, 2, 5, 12, 13, 64, 191, 193, 403}) {
        for (int64_t first = 0; first + batch <= kRows; first += std::max<int64_t>(batch, 67)) {
          const auto output =
              Multiply(*device, layer, input.data() + first * spec.in_features * 2, batch);
          ASSERT_EQ(0, std::memcmp(output.data(), together.data() + first * spec.out_features * 4,
                                   output.size() * 4))
              << batch << " rows from " << first << ", " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(OutliersTest, RowsWithoutHaveTheBitsOfALayerThatLooksForNone) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool segmented : {false, true}) {
      LinearSpec spec = Spec(1300, 77, 60.0f, dtype);
      spec.segmented = segmented;
      const auto weights = Floats(spec.out_features * spec.in_features, 0.1f);
      const WeightPart part{weights.data(), spec.out_features, DType::kF32};
      const auto input = HeavyTailed(dtype, 40, spec.in_features);
      const auto with = RunLinear(*device_, spec, part, input);
      spec.outlier_threshold = 0;
      const auto without = RunLinear(*device_, spec, part, input);
      const int64_t row_bytes = spec.out_features * 4;
      int differ = 0;
      for (int64_t r = 0; r < 40; ++r) {
        const bool same =
            std::memcmp(&with[r * row_bytes], &without[r * row_bytes], row_bytes) == 0;
        differ += !same;
        if (r % 5 == 4) {
          EXPECT_TRUE(same) << "row " << r << " has no outlier";
        }
      }
      EXPECT_GT(differ, 10);
    }
  }
}

TEST_P(OutliersTest, AnOutlierIsMultipliedAsItIsAndHasNoPartInTheScaleOfOthers) {
  // The scale of the weights is 1; those of the rows are 3 / 127 and 5 / 127.
  const std::vector<float> weights = {127, 1, -2, 5};
  const float three = 3.0f / 127;
  EXPECT_EQ(Products(6, weights, {1000, 3, 0.5f, -8})[0],
            (127.0f - 2 * 21) * three + (1000 * 127 - 8 * 5));
  // The threshold itself is one, of either sign; what is just below it is none.
  const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(6.0f) - 1);
  EXPECT_EQ(Products(6, weights, {6, 3, 0, -6})[0], 127.0f * three + (6 * 127 - 6 * 5));
  EXPECT_EQ(Products(6, weights, {below, 0, 0, 0})[0], 127.0f * 127 * (below / 127));
  // Next to nothing but outliers: the scale is 0.
  EXPECT_EQ(Products(6, weights, {0.1f, 7, 7, 7})[0],
            127.0f * 127 * (0.1f / 127) + (7.0f - 14 + 35));
  EXPECT_EQ(Products(6, weights, {9, 7, 7, 7})[0], 9.0f * 127 + 7 - 14 + 35);
}

// In f32 a product of an outlier rounds, and then the sum; inputs ascend.
TEST_P(OutliersTest, ProductsAndSumsOfOutliersRoundInTurn) {
  const std::vector<float> row = {0x1.000002p30f, -0x1.000002p30f, 12345.678f, 98765.43f};
  const std::vector<float> weights = {127, 126, 125, 99};
  float sum = 0;
  for (size_t k = 0; k < row.size(); ++k) {
    volatile const float product = row[k] * weights[k];
    sum = sum + product;
  }
  EXPECT_EQ(Products(6, weights, row)[0], sum);
}

// Powers of two everywhere, past the end of f32, infinities and NaNs; and thresholds that make
// outliers of all or of few.
TEST_P(OutliersTest, HostileNumbersHaveTheReferencesBitsAndStayVisible) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const float threshold : {kMinOutlierThreshold, 1e-10f, 6.0f, kMaxOutlierThreshold}) {
      for (const bool segmented : {false, true}) {
        LinearSpec spec = Spec(1029, 45, threshold, dtype);
        spec.segmented = segmented;
        constexpr int64_t kRows = 24;
        std::vector<float> numbers, weights;
        for (int64_t i = 0; i < kRows * spec.in_features; ++i) {
          const int64_t r = i / spec.in_features;
          numbers.push_back(HostileNumber(static_cast<int>(255 * r / kRows), random_.get()));
        }
        // A row each; the others have a few of all kinds.
        const float kinds[] = {kInfinity, -kInfinity, NAN};
        for (int64_t r = 0; r < 3; ++r) numbers[r * spec.in_features + 1000] = kinds[r];
        for (int64_t r = 20; r < kRows; ++r) {
          numbers[r * spec.in_features + Between(0, 1028)] = NonFiniteNumber(random_.get());
          numbers[r * spec.in_features + Between(0, 1028)] = NonFiniteNumber(random_.get());
        }
        for (int64_t i = 0; i < spec.out_features * spec.in_features; ++i) {
          weights.push_back(random_->Chance(0.1) ? 0.0f : Normal());
        }
        const WeightPart part{weights.data(), spec.out_features, DType::kF32};
        const auto input = In(dtype, numbers);
        const auto expected = RunLinear(*reference_, spec, part, input);
        const auto actual = RunLinear(*device_, spec, part, input);
        ASSERT_EQ(actual.size(), expected.size());
        for (int64_t i = 0; i < kRows * spec.out_features; ++i) {
          const float a = At(DType::kF32, actual, i), e = At(DType::kF32, expected, i);
          ASSERT_EQ(OneNan(std::bit_cast<uint32_t>(a)), OneNan(std::bit_cast<uint32_t>(e)))
              << "row " << i / spec.out_features << ", output " << i % spec.out_features
              << ", threshold " << threshold << ", " << NameOf(dtype);
          const int64_t r = i / spec.out_features;
          if (r < 3 || r >= 20) {
            ASSERT_FALSE(std::isfinite(a)) << r;
          }
        }
      }
    }
  }
}

TEST_P(OutliersTest, WeightsArePackedAsWithoutThem) {
  const auto weights = Floats(75 * 130);
  const std::vector<WeightPart> parts = {{weights.data(), 75, DType::kF32}};
  Layer without, with;
  ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, Spec(130, 75, 0), parts, &without));
  ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, Spec(130, 75, 6), parts, &with));
  EXPECT_EQ(device_->backend().GetPackedFormat(Spec(130, 75, 0))->id,
            device_->backend().GetPackedFormat(Spec(130, 75, 6))->id);
  ASSERT_EQ(without.packed.size_bytes(), with.packed.size_bytes());
  EXPECT_EQ(0, std::memcmp(without.packed.data(), with.packed.data(), with.packed.size_bytes()));
}

INSTANTIATE_TEST_SUITE_P(All, OutliersTest, testing::ValuesIn(TestedDevices()), DeviceName);
INSTANTIATE_TEST_SUITE_P(Fenced, OutliersTest, testing::Values("fenced"), DeviceName);

}  // namespace
}  // namespace tandem
