#include "runtime/model/number_convert.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace tandem {
namespace {

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
