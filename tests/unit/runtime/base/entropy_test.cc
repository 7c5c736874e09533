#include "runtime/base/entropy.h"

#include <gtest/gtest.h>

#include <set>

namespace tandem {
namespace {

TEST(EntropyTest, IdentitiesArePositiveAndDiffer) {
  std::set<uint64_t> drawn;
  uint64_t ever_set = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t number = RandomIdentity();
    EXPECT_NE(number, 0u);
    EXPECT_EQ(number >> 63, 0u);
    EXPECT_TRUE(drawn.insert(number).second);
    ever_set |= number;
  }
  EXPECT_EQ(ever_set, ~uint64_t{0} >> 1) << "every bit of them counts";
}

TEST(EntropyTest, BytesAreRandomHoweverManyAreAskedFor) {
  EXPECT_EQ(RandomBytes(0), "");
  for (const size_t count : {16, 256, 257, 1000}) {
    const std::string bytes = RandomBytes(count);
    ASSERT_EQ(bytes.size(), count);
    EXPECT_NE(bytes.substr(count - 16), std::string(16, '\0'));
    EXPECT_NE(bytes.substr(count - 16), RandomBytes(count).substr(count - 16));
  }
}

}  // namespace
}  // namespace tandem
