#include "runtime/kv_cache/kv_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "runtime/base/random.h"

namespace tandem {
namespace {

TEST(KvWindowTest, WithoutOneEveryBlockIsSeen) {
  const KvWindow window{.tokens = 0, .block_tokens = 16};
  EXPECT_EQ(window.FirstBlock(100'000), 0);
  EXPECT_EQ(window.MostBlocks(1'000, 32), 63);
}

TEST(KvWindowTest, TheFirstBlockIsThatOfTheFirstPositionInTheWindow) {
  for (const int64_t tokens : {1, 2, 15, 16, 17, 40, 4'096}) {
    for (const int32_t block_tokens : {16, 32}) {
      const KvWindow window{.tokens = tokens, .block_tokens = block_tokens};
      for (int64_t position = 0; position < 5'000; ++position) {
        int64_t first = position;  // The first that the token at `position` sees.
        while (first > 0 && position - (first - 1) < tokens && tokens > 1) --first;
        ASSERT_EQ(window.FirstBlock(position), first / block_tokens)
            << position << " of " << tokens;
        if (position > 300) position += 90;
      }
    }
  }
}

// Steps of 1 to `step_tokens`, each begun with what the step before it but one has left.
TEST(KvWindowTest, NobodyHoldsMoreThanTheMost) {
  const uint64_t seed = 20261124;
  std::cout << "seed " << seed << "\n";
  Random random(seed);
  int64_t fullest = 0;  // How often all of them were held.
  for (int run = 0; run < 2'000; ++run) {
    const int32_t block_tokens = random.Chance(0.5) ? 16 : 32;
    const KvWindow window{.tokens = random.Between(1, 200), .block_tokens = block_tokens};
    const int64_t step_tokens = random.Between(1, 100);
    const int64_t num_tokens = random.Between(1, 1'000);
    int64_t published = 0;
    for (int64_t done = 0; done < num_tokens;) {
      const int64_t end = std::min(num_tokens, done + random.Between(1, step_tokens));
      const int64_t held = CeilDiv<int64_t>(end, block_tokens) - window.FirstBlock(published);
      const int64_t most = window.MostBlocks(num_tokens, step_tokens);
      ASSERT_LE(held, most) << window.tokens << " " << step_tokens;
      fullest += held + 1 >= most;
      // A decode may be begun before the one before it is published.
      published = end - done == 1 ? done : end;
      done = end;
    }
  }
  EXPECT_GT(fullest, 0);
}

}  // namespace
}  // namespace tandem
