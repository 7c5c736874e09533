#include "runtime/kv_cache/block_hash.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "runtime/base/sha256.h"

namespace tandem {
namespace {

std::vector<int32_t> Tokens(size_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(BlockHashTest, IsTheTruncatedSha256OfParentAndTokens) {
  BlockHash parent;
  parent.bytes.fill(7);
  const std::vector<int32_t> tokens = Tokens(kHashTokens, 0x01020304);
  std::string bytes(16, '\7');
  for (const int32_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(token >> shift));
  }
  const Sha256Digest digest = Sha256Of(bytes);
  const BlockHash hash = HashBlock(parent, tokens);
  EXPECT_TRUE(std::equal(hash.bytes.begin(), hash.bytes.end(), digest.begin()));
}

// Other processes and releases must agree on the names.
TEST(BlockHashTest, NamesNeverChangeWithinAVersion) {
  const BlockHash root = HashRoot("model", "", "salt");
  const BlockHash first = HashBlock(root, Tokens(kHashTokens));
  EXPECT_EQ(HexOf(root.bytes.data(), 16), "f185c59350df68b6ef5ff68d177ddac6");
  EXPECT_EQ(HexOf(first.bytes.data(), 16), "50a98b9ed9f0b2f40ee355c65938501e");
}

TEST(BlockHashTest, RootsDifferInEveryField) {
  const std::set<BlockHash> roots = {HashRoot("a", "b", "c"), HashRoot("ab", "", "c"),
                                     HashRoot("", "ab", "c"), HashRoot("a", "bc", ""),
                                     HashRoot("a", "", "bc"), HashRoot("", "", "abc"),
                                     HashRoot("a", "b", "")};
  EXPECT_EQ(roots.size(), 7u);
}

TEST(BlockHashTest, ChainNamesFullRunsOnly) {
  const BlockHash root = HashRoot("m", "", "");
  const std::vector<int32_t> tokens = Tokens(2 * kHashTokens + kHashTokens - 1);
  const std::vector<BlockHash> chain = HashChain(root, tokens);
  ASSERT_EQ(chain.size(), 2u);
  const std::span<const int32_t> all = tokens;
  EXPECT_EQ(chain[0], HashBlock(root, all.first(kHashTokens)));
  EXPECT_EQ(chain[1], HashBlock(chain[0], all.subspan(kHashTokens, kHashTokens)));
  EXPECT_THAT(HashChain(root, all.first(kHashTokens - 1)), testing::IsEmpty());
}

TEST(BlockHashTest, AnEarlierTokenChangesAllLaterNames) {
  const BlockHash root = HashRoot("m", "", "");
  std::vector<int32_t> tokens = Tokens(3 * kHashTokens);
  const std::vector<BlockHash> before = HashChain(root, tokens);
  tokens[kHashTokens] += 1;
  const std::vector<BlockHash> after = HashChain(root, tokens);
  EXPECT_EQ(before[0], after[0]);
  EXPECT_NE(before[1], after[1]);
  EXPECT_NE(before[2], after[2]);
}

}  // namespace
}  // namespace tandem
