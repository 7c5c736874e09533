#include "kernels/sampling/philox.h"

#include <set>

#include "gtest/gtest.h"

namespace tandem {
namespace {

// The known answers of Random123 for philox4x32-10.
TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, EveryBitOfSeedChoiceAndPositionMatters) {
  std::set<uint64_t> seen = {RandomBits(0, 0, 0, RandomPurpose::kToken)};
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_TRUE(seen.insert(RandomBits(uint64_t{1} << bit, 0, 0, RandomPurpose::kToken)).second);
    EXPECT_TRUE(seen.insert(RandomBits(0, 0, uint64_t{1} << bit, RandomPurpose::kToken)).second);
  }
  for (int bit = 0; bit < 32; ++bit) {
    EXPECT_TRUE(seen.insert(RandomBits(0, uint32_t{1} << bit, 0, RandomPurpose::kToken)).second);
  }
}

}  // namespace
}  // namespace tandem
