#include "runtime/kv_cache/prefix_cache.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "runtime/base/random.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const BlockHash kRoot = HashRoot("m", "", "");

// `first` sets the block's tokens apart.
std::vector<int32_t> BlockOf(int32_t first, int32_t block_tokens = kHashTokens) {
  std::vector<int32_t> tokens(static_cast<size_t>(block_tokens), first);
  return tokens;
}

std::vector<int32_t> Prompt(const std::vector<int32_t>& firsts,
                            int32_t block_tokens = kHashTokens) {
  std::vector<int32_t> tokens;
  for (const int32_t first : firsts) {
    const std::vector<int32_t> block = BlockOf(first, block_tokens);
    tokens.insert(tokens.end(), block.begin(), block.end());
  }
  return tokens;
}

class PrefixCacheTest : public testing::Test {
 protected:
  // As a sequence would: match, allocate the rest, name all, release.
  std::vector<BlockId> Run(const std::vector<int32_t>& firsts) {
    const std::vector<int32_t> tokens = Prompt(firsts);
    PrefixCache::Hit hit = cache_.Match(kRoot, tokens);
    std::vector<BlockId> table = hit.blocks;
    const int32_t missing = static_cast<int32_t>(firsts.size() - table.size());
    const std::vector<BlockId> fresh = *pool_.Allocate(missing);
    table.insert(table.end(), fresh.begin(), fresh.end());
    for (size_t i = hit.blocks.size(); i < table.size(); ++i) {
      cache_.Append(&hit.cursor, BlockOf(firsts[i]), table[i]);
    }
    return table;
  }
  void RunAndRelease(const std::vector<int32_t>& firsts) { pool_.Release(Run(firsts)); }
  int32_t Cached(const std::vector<int32_t>& firsts) {
    return cache_.CountMatch(kRoot, Prompt(firsts));
  }
  void TearDown() override {
    EXPECT_TRUE(pool_.Audit().ok()) << pool_.Audit();
    EXPECT_TRUE(cache_.Audit().ok()) << cache_.Audit();
  }

  BlockPool pool_{4};
  PrefixCache cache_{{}, &pool_};
};

TEST_F(PrefixCacheTest, HitsTakeReferencesOnTheSharedPrefix) {
  const std::vector<BlockId> table = Run({1, 2, 3});
  const PrefixCache::Hit hit = cache_.Match(kRoot, Prompt({1, 2, 9}));
  EXPECT_THAT(hit.blocks, ElementsAre(table[0], table[1]));
  EXPECT_EQ(pool_.references(table[0]), 2);
  EXPECT_EQ(pool_.references(table[2]), 1);
  EXPECT_THAT(cache_.Match(HashRoot("m", "", "other tenant"), Prompt({1, 2})).blocks, IsEmpty());
}

TEST_F(PrefixCacheTest, OnlyWholeBlocksMatch) {
  Run({1, 2});
  std::vector<int32_t> tokens = Prompt({1, 2});
  tokens.pop_back();
  EXPECT_EQ(cache_.CountMatch(kRoot, tokens), 1);
}

TEST_F(PrefixCacheTest, EvictsLeavesBeforeTheSharedPrefix) {
  RunAndRelease({1, 2});
  RunAndRelease({1, 3});  // {1} is used last, then {3} and {2} hang on it.
  EXPECT_EQ(pool_.Counts(), (BlockCounts{.free = 1, .cached = 3, .total = 4}));
  const std::vector<BlockId> taken = *pool_.Allocate(2);
  EXPECT_EQ(Cached({1, 2}), 1);
  EXPECT_EQ(Cached({1, 3}), 2);
  const std::vector<BlockId> more = *pool_.Allocate(1);
  EXPECT_EQ(Cached({1, 3}), 1);
}

// Who computed what an older block has the name of, hangs what follows on that one.
TEST_F(PrefixCacheTest, EvictsWhatFollowsFirstThoughItWasUsedLast) {
  const std::vector<BlockId> older = Run({1});
  const std::vector<BlockId> table = *pool_.Allocate(2);
  PrefixCursor cursor{.name = kRoot};
  cache_.Append(&cursor, BlockOf(1), table[0]);
  cache_.Append(&cursor, BlockOf(2), table[1]);
  pool_.Release(older);
  pool_.Release(table);
  EXPECT_EQ(Cached({1, 2}), 2);
  const std::vector<BlockId> taken = *pool_.Allocate(3);
  EXPECT_EQ(Cached({1, 2}), 1);
}

TEST_F(PrefixCacheTest, EvictsTheLeastRecentlyUsedFirst) {
  RunAndRelease({1, 2});
  RunAndRelease({5, 6});
  RunAndRelease({1, 2});
  const std::vector<BlockId> taken = *pool_.Allocate(2);
  EXPECT_EQ(Cached({1, 2}), 2);
  EXPECT_EQ(Cached({5, 6}), 0);
}

TEST_F(PrefixCacheTest, NeverEvictsWhatIsHeldOrInFlight) {
  const std::vector<BlockId> table = Run({1, 2});
  pool_.Pin(table[1]);
  pool_.Release(table);
  EXPECT_EQ(pool_.Counts(), (BlockCounts{.free = 2, .cached = 1, .quarantined = 1, .total = 4}));
  EXPECT_FALSE(pool_.Allocate(4).ok());
  pool_.Unpin(table[1]);
  EXPECT_TRUE(pool_.Allocate(4).ok());
}

TEST_F(PrefixCacheTest, TheOlderBlockKeepsTheName) {
  const std::vector<BlockId> first = Run({1});
  PrefixCursor cursor{.name = kRoot};
  const BlockId second = pool_.Allocate(1)->front();
  cache_.Append(&cursor, BlockOf(1), second);
  EXPECT_FALSE(cursor.collided);
  EXPECT_FALSE(pool_.cached(second));
  EXPECT_THAT(cache_.Match(kRoot, BlockOf(1)).blocks, ElementsAre(first[0]));
}

TEST_F(PrefixCacheTest, EventsAreTheNetChangeNumberedOn) {
  const std::vector<BlockHash> names = HashChain(kRoot, Prompt({1, 2}));
  RunAndRelease({1, 2});
  const KvEvents stored = cache_.TakeEvents();
  EXPECT_EQ(stored.first_sequence, 0u);
  EXPECT_THAT(stored.stored, testing::UnorderedElementsAreArray(names));
  pool_.Release(*pool_.Allocate(3));  // Evicts {2}.
  RunAndRelease({1, 2});              // And there it is again.
  EXPECT_EQ(cache_.TakeEvents(), (KvEvents{.first_sequence = 2}));
  pool_.Release(*pool_.Allocate(3));
  EXPECT_THAT(cache_.Snapshot().stored, testing::UnorderedElementsAreArray(names));
  EXPECT_EQ(cache_.Snapshot().first_sequence, 2u);
  EXPECT_FALSE((KvEvents{.snapshot = true}.empty())) << "it says that nothing is cached";
  EXPECT_EQ(cache_.TakeEvents(), (KvEvents{.first_sequence = 2, .removed = {names[1]}}));
  EXPECT_EQ(cache_.Snapshot(),
            (KvEvents{.first_sequence = 3, .snapshot = true, .stored = {names[0]}}));
}

TEST(PrefixCacheOptionsTest, ALargerBlockHasTheNameOfItsLastRun) {
  BlockPool pool(2);
  PrefixCache cache({.block_tokens = 32}, &pool);
  PrefixCursor cursor{.name = kRoot};
  cache.Append(&cursor, BlockOf(1, 32), pool.Allocate(1)->front());
  EXPECT_EQ(cursor.name, HashChain(kRoot, BlockOf(1, 32)).back());
  EXPECT_THAT(cache.TakeEvents().stored, ElementsAre(cursor.name));
  EXPECT_EQ(cache.CountMatch(kRoot, BlockOf(1, 16)), 0);
  EXPECT_EQ(cache.CountMatch(kRoot, BlockOf(1, 32)), 1);
}

TEST(PrefixCacheOptionsTest, KeepsNothingWhenDisabled) {
  BlockPool pool(1);
  PrefixCache cache({.enabled = false}, &pool);
  PrefixCursor cursor{.name = kRoot};
  const BlockId block = pool.Allocate(1)->front();
  cache.Append(&cursor, BlockOf(1), block);
  EXPECT_EQ(cache.CountMatch(kRoot, BlockOf(1)), 0);
  pool.Release(block);
  EXPECT_EQ(pool.state(block), BlockState::kFree);
}

int num_hashed = 0;
BlockHash CountingHash(const BlockHash& parent, std::span<const int32_t> tokens) {
  ++num_hashed;
  return HashBlock(parent, tokens);
}

TEST(PrefixCacheOptionsTest, WhoLooksAgainHashesOnlyWhatIsNew) {
  BlockPool pool(4);
  // With a window a miss does not end the look.
  PrefixCache cache({.window = 16, .hasher = &CountingHash}, &pool);
  std::vector<BlockHash> names;
  num_hashed = 0;
  EXPECT_EQ(cache.CountMatch(kRoot, Prompt({1, 2}), kKeepNone, &names), 0);
  EXPECT_EQ(num_hashed, 2);
  EXPECT_EQ(names, HashChain(kRoot, Prompt({1, 2})));
  EXPECT_EQ(cache.CountMatch(kRoot, Prompt({1, 2, 3}), kKeepNone, &names), 0);
  EXPECT_EQ(num_hashed, 3);
  PrefixCursor cursor{.name = kRoot};
  const std::vector<BlockId> blocks = *pool.Allocate(3);
  for (size_t i = 0; i < 3; ++i) {
    cache.Append(&cursor, BlockOf(static_cast<int32_t>(i) + 1), blocks[i]);
  }
  num_hashed = 0;
  const PrefixCache::Hit hit = cache.Match(kRoot, Prompt({1, 2, 3}), kKeepNone, &names);
  EXPECT_EQ(num_hashed, 0);
  EXPECT_EQ(hit.blocks.size(), 3u);
  EXPECT_EQ(hit.cursor.name, cursor.name);
  // Fewer tokens than were looked for before.
  EXPECT_EQ(cache.CountMatch(kRoot, BlockOf(1), kKeepNone, &names), 1);
  for (const BlockId block : hit.blocks) {
    if (block != kNoBlock) pool.Release(block);
  }
  pool.Release(blocks);
}

// Four names only: nearly everything collides.
BlockHash WeakHash(const BlockHash& parent, std::span<const int32_t> tokens) {
  BlockHash hash;
  hash.bytes[0] = static_cast<uint8_t>((parent.bytes[0] + tokens[0]) % 4);
  return hash;
}

TEST(PrefixCacheOptionsTest, ACollisionIsAMiss) {
  BlockPool pool(4);
  PrefixCache cache({.hasher = &WeakHash}, &pool);
  const std::vector<BlockId> blocks = *pool.Allocate(3);
  PrefixCursor one{.name = {}}, other{.name = {}};
  cache.Append(&one, BlockOf(1), blocks[0]);
  cache.Append(&other, BlockOf(5), blocks[1]);
  EXPECT_TRUE(other.collided);
  cache.Append(&other, BlockOf(2), blocks[2]);  // Would hang on the wrong prefix.
  EXPECT_EQ(cache.num_entries(), 1);
  EXPECT_EQ(cache.CountMatch({}, BlockOf(5)), 0);
  EXPECT_EQ(cache.CountMatch({}, Prompt({1, 2})), 1);
}

// Hashes the tokens and no prefix: what follows another prefix has the same name.
BlockHash HashOfTokens(const BlockHash&, std::span<const int32_t> tokens) {
  return HashBlock({}, tokens);
}

TEST(PrefixCacheOptionsTest, TheSameTokensBehindAnotherPrefixAreAMiss) {
  BlockPool pool(4);
  PrefixCache cache({.hasher = &HashOfTokens}, &pool);
  const std::vector<BlockId> blocks = *pool.Allocate(3);
  PrefixCursor one{.name = kRoot}, other{.name = kRoot};
  cache.Append(&one, BlockOf(1), blocks[0]);
  cache.Append(&one, BlockOf(2), blocks[1]);
  cache.Append(&other, BlockOf(5), blocks[2]);
  EXPECT_EQ(cache.CountMatch(kRoot, Prompt({1, 2})), 2);
  EXPECT_EQ(cache.CountMatch(kRoot, Prompt({5, 2})), 1);
}

// Sequences come, grow, share and go; a map from whole prefixes to blocks says what must match.
TEST(PrefixCachePropertyTest, AgreesWithANaiveModelOnRandomOperations) {
  constexpr int kBlocks = 24;
  const uint64_t seed = 20240612;
  std::cout << "seed " << seed << "\n";
  Random random(seed);
  BlockPool pool(kBlocks);
  PrefixCache cache({}, &pool);
  using Prefix = std::vector<int32_t>;  // First token of each block.
  std::map<BlockId, Prefix> content;    // What was last written to each block.
  std::set<BlockHash> known;            // A router's view, from events alone.
  uint64_t next_sequence = 0;
  struct Sequence {
    Prefix firsts;
    std::vector<BlockId> table;
    PrefixCursor cursor;
  };
  std::vector<Sequence> sequences;
  int64_t hits = 0, refused = 0;
  for (int step = 0; step < 100'000; ++step) {
    const uint64_t what = random.Below(10);
    if (what < 3 && sequences.size() < 8) {
      Prefix wanted(random.Below(5));
      for (int32_t& first : wanted) first = static_cast<int32_t>(random.Below(3));
      const int32_t counted = cache.CountMatch(kRoot, Prompt(wanted));
      PrefixCache::Hit hit = cache.Match(kRoot, Prompt(wanted));
      ASSERT_EQ(static_cast<size_t>(counted), hit.blocks.size());
      hits += counted;
      for (size_t i = 0; i < hit.blocks.size(); ++i) {
        ASSERT_EQ(content[hit.blocks[i]],
                  Prefix(wanted.begin(), wanted.begin() + static_cast<int64_t>(i) + 1));
      }
      wanted.resize(hit.blocks.size());
      sequences.push_back({wanted, hit.blocks, hit.cursor});
    } else if (what < 7 && !sequences.empty()) {
      Sequence& s = sequences[random.Below(sequences.size())];
      const bool available = pool.num_available() > 0;
      const absl::StatusOr<std::vector<BlockId>> block = pool.Allocate(1);
      ASSERT_EQ(block.ok(), available);
      if (!block.ok()) {
        ++refused;
        continue;
      }
      for (const Sequence& other : sequences) {
        ASSERT_THAT(other.table, testing::Not(testing::Contains(block->front())));
      }
      s.firsts.push_back(static_cast<int32_t>(random.Below(3)));
      s.table.push_back(block->front());
      content[block->front()] = s.firsts;
      cache.Append(&s.cursor, BlockOf(s.firsts.back()), block->front());
    } else if (!sequences.empty()) {
      const size_t i = random.Below(sequences.size());
      pool.Release(sequences[i].table);
      sequences.erase(sequences.begin() + static_cast<int64_t>(i));
    }
    if (step % 16 != 0) continue;
    const KvEvents events = cache.TakeEvents();
    ASSERT_EQ(events.first_sequence, next_sequence);
    next_sequence += events.stored.size() + events.removed.size();
    for (const BlockHash& name : events.stored) ASSERT_TRUE(known.insert(name).second);
    for (const BlockHash& name : events.removed) ASSERT_EQ(known.erase(name), 1u);
    ASSERT_EQ(cache.Snapshot().stored, std::vector<BlockHash>(known.begin(), known.end()));
    ASSERT_EQ(static_cast<size_t>(cache.num_entries()), known.size());
    const BlockCounts c = pool.Counts();
    ASSERT_EQ(c.free + c.held + c.cached + c.in_flight + c.quarantined, kBlocks);
    ASSERT_TRUE(pool.Audit().ok()) << pool.Audit();
    ASSERT_TRUE(cache.Audit().ok()) << cache.Audit();
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(refused, 10);
}

class WindowedCacheTest : public testing::Test {
 protected:
  // Names six blocks and gives them all back; those in `gone` are then evicted.
  void Fill(const std::vector<size_t>& gone) {
    PrefixCursor cursor{.name = kRoot};
    const std::vector<BlockId> table = *pool_.Allocate(6);
    for (size_t i = 0; i < table.size(); ++i) {
      const bool here = std::find(gone.begin(), gone.end(), i) == gone.end();
      cache_.Append(&cursor, BlockOf(static_cast<int32_t>(i)), here ? table[i] : kNoBlock);
    }
    pool_.Release(table);
    table_ = table;
  }
  std::vector<BlockId> Match(int32_t num_blocks, int32_t keep_from = kKeepNone) {
    std::vector<int32_t> firsts(static_cast<size_t>(num_blocks));
    std::iota(firsts.begin(), firsts.end(), 0);
    PrefixCache::Hit hit = cache_.Match(kRoot, Prompt(firsts), keep_from);
    EXPECT_EQ(cache_.CountMatch(kRoot, Prompt(firsts), keep_from),
              static_cast<int32_t>(hit.blocks.size()));
    EXPECT_TRUE(hit.blocks.empty() ||
                hit.cursor.name == HashChain(kRoot, Prompt(firsts))[hit.blocks.size() - 1]);
    for (const BlockId block : hit.blocks) {
      if (block != kNoBlock) pool_.Release(block);
    }
    return hit.blocks;
  }
  void TearDown() override { EXPECT_TRUE(cache_.Audit().ok()) << cache_.Audit(); }

  // The token after n blocks sees the last one and the half of that before it.
  BlockPool pool_{8};
  PrefixCache cache_{{.window = 1 + kHashTokens + kHashTokens / 2}, &pool_};
  std::vector<BlockId> table_;
};

TEST_F(WindowedCacheTest, AHitHoldsOnlyWhatTheNextTokenSees) {
  Fill({});
  EXPECT_THAT(Match(6), ElementsAre(kNoBlock, kNoBlock, kNoBlock, kNoBlock, table_[4], table_[5]));
  EXPECT_THAT(Match(2), ElementsAre(table_[0], table_[1]));
}

TEST_F(WindowedCacheTest, AHitNeedsOnlyWhatTheNextTokenSees) {
  Fill({0, 1, 3});
  EXPECT_THAT(Match(6), ElementsAre(kNoBlock, kNoBlock, kNoBlock, kNoBlock, table_[4], table_[5]));
  EXPECT_THAT(Match(5), IsEmpty());  // Block 3 is missing after 5 blocks, block 1 after 3.
  EXPECT_THAT(Match(3), IsEmpty());
}

TEST_F(WindowedCacheTest, BlocksThatAreToBeKeptAreNeeded) {
  Fill({1});
  EXPECT_THAT(Match(6, /*keep_from=*/2),
              ElementsAre(kNoBlock, kNoBlock, table_[2], table_[3], table_[4], table_[5]));
  EXPECT_THAT(Match(6, /*keep_from=*/1), ElementsAre(table_[0]));
  EXPECT_THAT(Match(6, /*keep_from=*/0), ElementsAre(table_[0]));
}

}  // namespace
}  // namespace tandem
