// Row operations equal the reference bit by bit on every instruction set, over odd shapes.

#include "kernels/api/rows.h"

#include <limits>
#include <utility>

#include "tests/kernels/kernel_test_support.h"

namespace tandem {
namespace {

constexpr int kCases = 60;

class RowsTest : public DeviceTest {
 protected:
  RowsTest() { tiny_share_ = 0.1; }

  int64_t SomeRows() { return random_->Chance(0.1) ? 0 : Between(1, 9); }
  int64_t SomeFeatures() {
    constexpr int64_t kOdd[] = {1, 2, 15, 16, 17, 31, 33, 64, 255, 768};
    return random_->Chance(0.5) ? kOdd[random_->Below(10)] : Between(1, 400);
  }
};

TEST_P(RowsTest, RmsNormEqualsReference) {
  for (int i = 0; i < kCases; ++i) {
    const int64_t rows = SomeRows(), features = SomeFeatures();
    const DType dtype = AnyDType();
    const auto input = Floats(rows * features, 3.0f), weight = Floats(features);
    std::vector<std::byte> expected(rows * features * SizeOf(dtype)), actual(expected.size());
    HostRmsNormArgs args{.input = input.data(),
                         .weight = weight.data(),
                         .output = expected.data(),
                         .num_rows = rows,
                         .features = features,
                         .epsilon = 1e-5f,
                         .output_dtype = dtype};
    ASSERT_OK(reference_->RmsNorm(args));
    args.output = actual.data();
    ASSERT_OK(device_->RmsNorm(args));
    ASSERT_EQ(actual, expected) << rows << " × " << features;
  }
}

TEST_P(RowsTest, LayerNormEqualsReference) {
  for (int i = 0; i < kCases; ++i) {
    const int64_t rows = SomeRows(), features = SomeFeatures();
    const DType dtype = AnyDType();
    const auto input = Floats(rows * features, 3.0f), weight = Floats(features),
               bias = Floats(features);
    std::vector<std::byte> expected(rows * features * SizeOf(dtype)), actual(expected.size());
    HostLayerNormArgs args{.input = input.data(),
                           .weight = weight.data(),
                           .bias = bias.data(),
                           .output = expected.data(),
                           .num_rows = rows,
                           .features = features,
                           .epsilon = 1e-5f,
                           .output_dtype = dtype};
    ASSERT_OK(reference_->LayerNorm(args));
    args.output = actual.data();
    ASSERT_OK(device_->LayerNorm(args));
    ASSERT_EQ(actual, expected) << rows << " × " << features;
  }
}

TEST_P(RowsTest, SoftCapsEqualReferenceAndKeepTheCap) {
  for (int i = 0; i < kCases; ++i) {
    const int64_t count = Between(0, 70000);
    const float cap = random_->Chance(0.5) ? 30.0f : 0.5f;
    auto expected = Floats(count, random_->Chance(0.5) ? 100.0f : 0.1f), actual = expected;
    if (count > 1) expected[1] = actual[1] = std::numeric_limits<float>::infinity();
    ASSERT_OK(reference_->SoftCap({.values = expected.data(), .count = count, .cap = cap}));
    ASSERT_OK(device_->SoftCap({.values = actual.data(), .count = count, .cap = cap}));
    ASSERT_EQ(actual, expected) << count;
    if (count > 1) {
      EXPECT_EQ(actual[1], cap);
    }
    for (const float value : actual) ASSERT_LE(std::fabs(value), cap);
  }
}

TEST_P(RowsTest, AddEqualsReference) {
  for (int i = 0; i < kCases; ++i) {
    const int64_t count = Between(0, 70000);
    const auto addend = Floats(count);
    auto expected = Floats(count), actual = expected;
    ASSERT_OK(
        reference_->Add({.accumulator = expected.data(), .addend = addend.data(), .count = count}));
    ASSERT_OK(
        device_->Add({.accumulator = actual.data(), .addend = addend.data(), .count = count}));
    ASSERT_EQ(actual, expected) << count;
  }
}

TEST_P(RowsTest, EmbeddingEqualsReference) {
  for (int i = 0; i < kCases; ++i) {
    const int64_t rows = SomeRows(), features = SomeFeatures(), vocabulary = Between(1, 50);
    const DType dtype = AnyDType();
    const auto table = Array(dtype, vocabulary * features);
    const auto position_table = Array(dtype, 20 * features);
    std::vector<int32_t> ids(rows), positions(rows);
    for (int32_t& id : ids) id = static_cast<int32_t>(Between(0, vocabulary - 1));
    for (int32_t& position : positions) position = static_cast<int32_t>(Between(0, 19));
    std::vector<float> expected(rows * features), actual(rows * features);
    HostEmbeddingArgs args{.ids = ids.data(),
                           .table = table.data(),
                           .output = expected.data(),
                           .num_rows = rows,
                           .features = features,
                           .table_dtype = dtype};
    if (random_->Chance(0.5)) {
      args.positions = positions.data();
      args.position_table = position_table.data();
    }
    ASSERT_OK(reference_->Embedding(args));
    args.output = actual.data();
    ASSERT_OK(device_->Embedding(args));
    ASSERT_EQ(actual, expected);
    // The same, where the device has drawn some of them.
    std::vector<int32_t> drawn(rows + 1, static_cast<int32_t>(vocabulary));
    for (int64_t row = 0; row < rows; ++row) {
      if (random_->Chance(0.5)) continue;
      const int64_t place = rows - row;
      drawn[place] = std::exchange(ids[row], static_cast<int32_t>(-1 - place));
    }
    args.drawn_tokens = drawn.data();
    std::fill(actual.begin(), actual.end(), 0.0f);
    ASSERT_OK(device_->Embedding(args));
    ASSERT_EQ(actual, expected);
  }
}

TEST_P(RowsTest, GatherRowsEqualsReference) {
  for (int i = 0; i < kCases; ++i) {
    const int64_t rows = SomeRows(), features = SomeFeatures(), inputs = Between(1, 30);
    const DType dtype = AnyDType();
    const auto input = Array(dtype, inputs * features);
    std::vector<int32_t> chosen(rows);
    for (int32_t& row : chosen) row = static_cast<int32_t>(Between(0, inputs - 1));
    std::vector<std::byte> expected(rows * features * SizeOf(dtype)), actual(expected.size());
    HostGatherRowsArgs args{.input = input.data(),
                            .rows = chosen.data(),
                            .output = expected.data(),
                            .num_rows = rows,
                            .num_input_rows = inputs,
                            .features = features,
                            .dtype = dtype};
    ASSERT_OK(reference_->GatherRows(args));
    args.output = actual.data();
    ASSERT_OK(device_->GatherRows(args));
    ASSERT_EQ(actual, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowsTest, testing::ValuesIn(TestedDevices()), DeviceName);
INSTANTIATE_TEST_SUITE_P(Fenced, RowsTest, testing::Values("fenced"), DeviceName);

}  // namespace
}  // namespace tandem
