#include "runtime/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/base/random.h"

namespace tandem {
namespace {

// Bit by bit, from the definition.
uint32_t NaiveCrc32c(const std::vector<uint8_t>& data) {
  uint32_t crc = ~0u;
  for (const uint8_t byte : data) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0);
  }
  return ~crc;
}

TEST(Crc32cTest, MatchesThePublishedVectors) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF').data(), 32), 0x62A8AB43u);
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(Crc32c("", 0), 0u);
}

TEST(Crc32cTest, EqualsTheDefinitionAtEveryLengthAndSplit) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (const size_t size : {1, 15, 16, 17, 63, 767, 768, 769, 1536, 3073, 10000, 65536}) {
    std::vector<uint8_t> data(size);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Next());
    const uint32_t want = NaiveCrc32c(data);
    EXPECT_EQ(Crc32c(data.data(), size), want) << size;
    const size_t cut = random.Below(size + 1);
    EXPECT_EQ(Crc32c(data.data() + cut, size - cut, Crc32c(data.data(), cut)), want) << size;
    std::vector<uint8_t> copy(size);
    EXPECT_EQ(Crc32cCopy(copy.data(), data.data(), size), want) << size;
    EXPECT_EQ(copy, data);
  }
}

}  // namespace
}  // namespace tandem
