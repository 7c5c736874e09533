#include "runtime/routing/prefix_index.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/base/random.h"
#include "tests/support/growth.h"

namespace tandem {
namespace {

using Prefixes = std::map<std::string, int32_t>;

const WorkerId kA{.name = "a", .incarnation = 1};
const WorkerId kB{.name = "b", .incarnation = 1};

std::vector<BlockHash> Chain(int blocks, int32_t first_token) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < blocks * kHashTokens; ++i) tokens.push_back(first_token + i);
  return HashChain(HashRoot("m", "", ""), tokens);
}

KvEvents Snapshot(std::vector<BlockHash> stored, uint64_t next = 0) {
  return {.first_sequence = next, .snapshot = true, .stored = std::move(stored), .removed = {}};
}

TEST(PrefixIndex, FindsTheLongestPrefixOfEveryWorker) {
  PrefixIndex index(1000);
  index.AddWorker(kA, 16);
  index.AddWorker(kB, 16);
  const auto chain = Chain(5, 0);
  EXPECT_TRUE(index.Apply(kA, Snapshot({chain[0], chain[1], chain[3]})));
  EXPECT_TRUE(index.Apply(kB, Snapshot({chain[0]})));
  EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 32}, {"b", 16}}));
  EXPECT_TRUE(index.Apply(kB, {.first_sequence = 0,
                               .snapshot = false,
                               .stored = {chain[1], chain[2]},
                               .removed = {chain[0]}}));
  EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 32}})) << "b's begins in the middle";
  EXPECT_TRUE(index.LongestPrefixes(Chain(3, 99)).empty());
}

TEST(PrefixIndex, LargerBlocksAreNamedByTheirLastHash) {
  PrefixIndex index(1000);
  index.AddWorker(kA, 32);
  index.AddWorker(kB, 16);
  const auto chain = Chain(6, 0);
  index.Apply(kA, Snapshot({chain[1], chain[3]}));
  index.Apply(kB, Snapshot({chain[0]}));
  EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 64}, {"b", 16}}));
}

TEST(PrefixIndex, ADeadWorkerTakesItsEntriesWithIt) {
  PrefixIndex index(1000);
  index.AddWorker(kA, 16);
  const auto chain = Chain(3, 0);
  index.Apply(kA, Snapshot(chain));
  index.RemoveWorker(kA);
  EXPECT_TRUE(index.LongestPrefixes(chain).empty());
  // A new life does not inherit, and late events of the old one do not count.
  const WorkerId reborn{.name = "a", .incarnation = 2};
  index.AddWorker(reborn, 16);
  EXPECT_TRUE(index.Apply(kA, Snapshot(chain)));
  EXPECT_TRUE(index.LongestPrefixes(chain).empty());
  index.Apply(reborn, Snapshot({chain[0]}));
  EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 16}}));
  index.RemoveWorker(kA);
  EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 16}})) << "nor does its end";
}

TEST(PrefixIndex, WhatIsSaidOfAWorkerThatIsNotKnownIsNothing) {
  PrefixIndex index(1000);
  index.AddWorker(kA, 16);
  const auto chain = Chain(3, 0);
  index.Apply(kA, Snapshot(chain));
  EXPECT_TRUE(index.Apply(kB, Snapshot(Chain(3, 1))));
  index.RemoveWorker(kB);
  EXPECT_EQ(index.num_entries(), 3);
  EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 48}}));
}

TEST(PrefixIndex, AWorkerThatSaysTheSameOverAndOverTakesNoMoreMemory) {
  PrefixIndex index(1000);
  index.AddWorker(kA, 16);
  const auto chain = Chain(3, 0);
  index.Apply(kA, Snapshot({}));
  uint64_t sequence = 0;
  const int64_t growth = Growth([&](uint64_t) {
    EXPECT_TRUE(index.Apply(
        kA, {.first_sequence = sequence, .snapshot = false, .stored = chain, .removed = {}}));
    sequence += chain.size();
  });
  EXPECT_LT(growth, kNoGrowth);
  EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 48}}));
}

TEST(PrefixIndex, AGapVoidsTheWorkerUntilItsNextSnapshotAndIsToldOnce) {
  PrefixIndex index(1000);
  index.AddWorker(kA, 16);
  const auto chain = Chain(3, 0);
  EXPECT_TRUE(index.Apply(kA, Snapshot({chain[0]}, 5)));
  const KvEvents gap{.first_sequence = 6, .snapshot = false, .stored = {chain[1]}, .removed = {}};
  EXPECT_FALSE(index.Apply(kA, gap));
  EXPECT_TRUE(index.Apply(kA, gap)) << "told once";
  EXPECT_TRUE(index.LongestPrefixes(chain).empty());
  EXPECT_TRUE(index.Apply(kA, Snapshot(chain, 9)));
  EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 48}}));
  // The next one is another gap; so is one in a Watch that broke before its snapshot came.
  EXPECT_FALSE(index.Apply(kA, gap));
  EXPECT_TRUE(index.Apply(kA, gap));
  index.AddWorker(kA, 16);
  EXPECT_FALSE(index.Apply(kA, gap));
}

TEST(PrefixIndex, AWorkerInheritsNothingFromOneThatIsGone) {
  const auto chain = Chain(1, 0);
  const auto from = [&](uint64_t sequence) {
    return KvEvents{
        .first_sequence = sequence, .snapshot = false, .stored = {chain[0]}, .removed = {}};
  };
  for (const bool gap : {false, true}) {
    PrefixIndex index(1000);
    index.AddWorker(kA, 16);
    EXPECT_TRUE(index.Apply(kA, Snapshot({}, 5)));
    if (gap) {
      EXPECT_FALSE(index.Apply(kA, from(6)));
    }
    index.RemoveWorker(kA);
    index.AddWorker(kB, 16);
    EXPECT_FALSE(index.Apply(kB, from(5))) << "its snapshot has not come";
  }
}

// Whatever it was that nobody holds any more.
TEST(PrefixIndex, EntriesThatNobodyHoldsAreForgotten) {
  PrefixIndex index(1000);
  index.AddWorker(kA, 16);
  index.AddWorker(kB, 16);
  const auto first = Chain(10, 0), second = Chain(10, 1), third = Chain(10, 2);
  uint64_t sequence = 0;
  const auto change = [&](std::vector<BlockHash> stored, std::vector<BlockHash> removed) {
    const uint64_t at = sequence;
    sequence += stored.size() + removed.size();
    EXPECT_TRUE(index.Apply(kB, {.first_sequence = at,
                                 .snapshot = false,
                                 .stored = std::move(stored),
                                 .removed = std::move(removed)}));
  };
  EXPECT_TRUE(index.Apply(kA, Snapshot(first)));
  EXPECT_TRUE(index.Apply(kB, Snapshot({second[0]})));
  EXPECT_TRUE(index.Apply(kA, Snapshot({first[0]})));
  change({}, {});
  EXPECT_EQ(index.num_entries(), 2) << "the snapshot had one of ten";
  index.RemoveWorker(kA);
  change({}, {});
  EXPECT_EQ(index.num_entries(), 1) << "it is gone";
  change(third, {});
  change({}, third);
  change({}, {});
  EXPECT_EQ(index.num_entries(), 1) << "they were removed";
  index.AddWorker(kA, 16);
  EXPECT_TRUE(index.Apply(kA, Snapshot(first)));
  EXPECT_FALSE(index.Apply(
      kA, {.first_sequence = 1, .snapshot = false, .stored = {}, .removed = {first[0]}}));
  change({}, {});
  EXPECT_EQ(index.num_entries(), 1) << "events are missing in between";
}

TEST(PrefixIndex, ASnapshotReplacesAllThatWasKnown) {
  PrefixIndex index(1000);
  index.AddWorker(kA, 16);
  const auto chain = Chain(3, 0);
  index.Apply(kA, Snapshot(chain));
  index.Apply(kA, Snapshot({chain[0]}));
  EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 16}}));
}

// As a worker says it that has more than fits one message.
TEST(PrefixIndex, PiecesSayWhatTheWholeSays) {
  const auto chain = Chain(10, 0), other = Chain(3, 1);
  for (const size_t max_hashes : {1u, 3u, 4u, 10u, 100u}) {
    SCOPED_TRACE(max_hashes);
    PrefixIndex index(1000);
    index.AddWorker(kA, 16);
    const auto apply = [&](const KvEvents& events) {
      const std::vector<KvEvents> pieces = SplitEvents(events, max_hashes);
      EXPECT_EQ(
          pieces.size(),
          std::max<size_t>(
              1, (events.stored.size() + events.removed.size() + max_hashes - 1) / max_hashes));
      for (const KvEvents& piece : pieces) {
        EXPECT_LE(piece.stored.size() + piece.removed.size(), max_hashes);
        EXPECT_TRUE(index.Apply(kA, piece));
      }
    };
    apply(Snapshot(Chain(5, 7)));
    apply(Snapshot(chain, 2));
    EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 160}}));
    EXPECT_TRUE(index.LongestPrefixes(Chain(5, 7)).empty());
    apply(
        {.first_sequence = 2, .snapshot = false, .stored = other, .removed = {chain[8], chain[9]}});
    EXPECT_EQ(index.LongestPrefixes(chain), (Prefixes{{"a", 128}}));
    EXPECT_EQ(index.LongestPrefixes(other), (Prefixes{{"a", 48}}));
    apply({.first_sequence = 7, .snapshot = false, .stored = {}, .removed = other});
    EXPECT_TRUE(index.LongestPrefixes(other).empty());
    apply(Snapshot({}, 10));
    EXPECT_TRUE(index.LongestPrefixes(chain).empty());
  }
}

TEST(PrefixIndex, MemoryIsBoundedAndTheOldestGoFirst) {
  PrefixIndex index(100);
  index.AddWorker(kA, 16);
  index.Apply(kA, Snapshot({}));
  const auto old_chain = Chain(60, 0), new_chain = Chain(60, 5);
  index.Apply(kA, {.first_sequence = 0, .snapshot = false, .stored = old_chain, .removed = {}});
  index.Apply(kA, {.first_sequence = 60, .snapshot = false, .stored = new_chain, .removed = {}});
  EXPECT_EQ(index.num_entries(), 100);
  EXPECT_EQ(index.LongestPrefixes(new_chain), (Prefixes{{"a", 960}}));
  EXPECT_TRUE(index.LongestPrefixes(old_chain).empty());
}

// Against a plain model: a set of hashes a worker.
TEST(PrefixIndex, AgreesWithAPlainModelOnRandomHistories) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    PrefixIndex index(10'000);
    std::map<std::string, std::set<BlockHash>> model;
    std::map<std::string, WorkerId> ids;
    std::map<std::string, uint64_t> sequence;
    std::vector<std::vector<BlockHash>> chains;
    for (int i = 0; i < 4; ++i) chains.push_back(Chain(8, i * 1000));
    for (int step = 0; step < 300; ++step) {
      const std::string name(1, static_cast<char>('a' + random.Below(3)));
      if (!ids.contains(name) || random.Chance(0.03)) {
        ids[name] = {.name = name, .incarnation = random.Next()};
        index.AddWorker(ids[name], 16);
        model[name].clear();
        sequence[name] = random.Below(100);
        index.Apply(ids[name], Snapshot({}, sequence[name]));
      }
      KvEvents events{
          .first_sequence = sequence[name], .snapshot = false, .stored = {}, .removed = {}};
      for (uint64_t i = random.Below(6); i > 0; --i) {
        events.stored.push_back(chains[random.Below(4)][random.Below(8)]);
      }
      model[name].insert(events.stored.begin(), events.stored.end());
      for (uint64_t i = random.Below(3); i > 0; --i) {
        events.removed.push_back(chains[random.Below(4)][random.Below(8)]);
        model[name].erase(events.removed.back());
      }
      sequence[name] += events.stored.size() + events.removed.size();
      ASSERT_TRUE(index.Apply(ids[name], events));
      for (const auto& chain : chains) {
        Prefixes expected;
        for (const auto& [worker, held] : model) {
          int32_t blocks = 0;
          while (blocks < 8 && held.contains(chain[static_cast<size_t>(blocks)])) ++blocks;
          if (blocks > 0) expected[worker] = blocks * kHashTokens;
        }
        ASSERT_EQ(index.LongestPrefixes(chain), expected);
      }
    }
    EXPECT_LE(index.num_entries(), 32);
  }
}

}  // namespace
}  // namespace tandem
