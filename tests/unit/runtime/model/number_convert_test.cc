#include "runtime/model/number_convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace tandem {
namespace {

TEST(NumberConvertTest, EveryF16ValueSurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = FloatFromF16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE((bits & 0x7C00u) == 0x7C00u && (bits & 0x3FFu) != 0) << bits;
      continue;
    }
    EXPECT_EQ(F16FromFloat(value), bits);
  }
}

TEST(NumberConvertTest, F16HasTheValuesOfItsDefinition) {
  EXPECT_EQ(FloatFromF16(0x3C00), 1.0f);
  EXPECT_EQ(FloatFromF16(0xC000), -2.0f);
  EXPECT_EQ(FloatFromF16(0x7BFF), 65504.0f);
  EXPECT_EQ(FloatFromF16(0x0001), 0x1p-24f);
  EXPECT_EQ(FloatFromF16(0x03FF), 1023 * 0x1p-24f);
  EXPECT_TRUE(std::isinf(FloatFromF16(0x7C00)));
  EXPECT_TRUE(std::signbit(FloatFromF16(0x8000)));
}

TEST(NumberConvertTest, RoundsToNearestEven) {
  EXPECT_EQ(F16FromFloat(1.0f + 0x1p-11f), 0x3C00);      // Half way: to even.
  EXPECT_EQ(F16FromFloat(1.0f + 3 * 0x1p-11f), 0x3C02);  // Half way: to even.
  EXPECT_EQ(F16FromFloat(1.0f + 0x1p-11f + 0x1p-20f), 0x3C01);
  EXPECT_EQ(F16FromFloat(65520.0f), 0x7C00);
  EXPECT_EQ(F16FromFloat(0x1p-25f), 0x0000);
  EXPECT_EQ(F16FromFloat(0x1.8p-24f), 0x0002);
}

TEST(NumberConvertTest, ReadsUnalignedTensors) {
  const std::vector<float> values = {1.5f, -2.0f, 1e-3f};
  std::vector<uint8_t> bytes(1 + 3 * sizeof(float));
  std::memcpy(bytes.data() + 1, values.data(), 3 * sizeof(float));
  std::vector<float> floats(3);
  ConvertToF32(TensorType::kF32, std::span<const uint8_t>(bytes).subspan(1), floats);
  EXPECT_EQ(floats, values);
  std::vector<uint16_t> rounded(3);
  ConvertToBf16(TensorType::kF32, std::span<const uint8_t>(bytes).subspan(1), rounded);
  EXPECT_EQ(rounded[0], 0x3FC0);
  EXPECT_EQ(rounded[1], 0xC000);
}

}  // namespace
}  // namespace tandem
