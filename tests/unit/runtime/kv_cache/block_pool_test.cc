#include "runtime/kv_cache/block_pool.h"

#include <cstdint>
#include <iostream>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "runtime/base/random.h"

namespace tandem {
namespace {

TEST(BlockPoolTest, AllocatesAllOrNone) {
  BlockPool pool(3);
  EXPECT_EQ(pool.Allocate(2)->size(), 2u);
  const absl::StatusOr<std::vector<BlockId>> more = pool.Allocate(2);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(more.status().message()), testing::HasSubstr("want 2 blocks of 3"));
  EXPECT_EQ(pool.Counts(), (BlockCounts{.free = 1, .held = 2, .total = 3}));
  EXPECT_EQ(pool.Allocate(1)->size(), 1u);
  EXPECT_EQ(pool.Allocate(0)->size(), 0u);
}

TEST(BlockPoolTest, FreesWithTheLastReferenceAndCountsGenerations) {
  BlockPool pool(1);
  const BlockId block = pool.Allocate(1)->front();
  const uint32_t life = pool.life(block);
  pool.AddReference(block);
  pool.Release(block);
  EXPECT_EQ(pool.state(block), BlockState::kHeld);
  EXPECT_EQ(pool.life(block), life);
  pool.Release(block);
  EXPECT_EQ(pool.state(block), BlockState::kFree);
  EXPECT_EQ(pool.life(block), life + 1);
}

TEST(BlockPoolTest, ABlockInFlightOutlivesItsOwnerInQuarantine) {
  BlockPool pool(1);
  const BlockId block = pool.Allocate(1)->front();
  pool.Pin(block);
  pool.Pin(block);
  EXPECT_EQ(pool.state(block), BlockState::kInFlight);
  pool.Release(block);
  EXPECT_EQ(pool.Counts(), (BlockCounts{.quarantined = 1, .total = 1}));
  EXPECT_FALSE(pool.Allocate(1).ok());
  pool.Unpin(block);
  EXPECT_FALSE(pool.Allocate(1).ok());
  pool.Unpin(block);
  EXPECT_EQ(pool.Counts(), (BlockCounts{.free = 1, .total = 1}));
  EXPECT_TRUE(pool.Allocate(1).ok());
}

TEST(BlockPoolTest, TellsOfABlockThatBecomesFreeAndOfNoOther) {
  struct Freed final : FreedBlocks {
    void OnFreed(BlockId block) override {
      EXPECT_EQ(pool.state(block), BlockState::kFree);
      blocks.push_back(block);
    }
    BlockPool pool{2};
    std::vector<BlockId> blocks;
  } freed;
  freed.pool.AttachFreedBlocks(&freed);
  const std::vector<BlockId> blocks = *freed.pool.Allocate(2);
  freed.pool.AddReference(blocks[0]);
  freed.pool.Pin(blocks[1]);
  freed.pool.Release(blocks);
  EXPECT_THAT(freed.blocks, testing::IsEmpty());
  freed.pool.Unpin(blocks[1]);
  EXPECT_THAT(freed.blocks, testing::ElementsAre(blocks[1]));
  freed.pool.SetCached(blocks[0], true);
  freed.pool.Release(blocks[0]);
  EXPECT_THAT(freed.blocks, testing::ElementsAre(blocks[1]));
  freed.pool.SetCached(blocks[0], false);
  EXPECT_THAT(freed.blocks, testing::ElementsAre(blocks[1], blocks[0]));
}

TEST(BlockPoolTest, IsExclusiveOnlyForASoleHolder) {
  BlockPool pool(2);
  const BlockId block = pool.Allocate(1)->front();
  EXPECT_TRUE(pool.Exclusive(block));
  pool.AddReference(block);
  EXPECT_FALSE(pool.Exclusive(block));
  pool.Release(block);
  pool.Pin(block);
  EXPECT_FALSE(pool.Exclusive(block));
  pool.Unpin(block);
  pool.SetCached(block, true);
  EXPECT_FALSE(pool.Exclusive(block));
}

TEST(BlockPoolDeathTest, StopsAtAReferenceOrPinThatIsNotThere) {
  BlockPool pool(1);
  EXPECT_DEATH(pool.Release(0), "no reference");
  EXPECT_DEATH(pool.Unpin(0), "not pinned");
  EXPECT_DEATH(pool.Pin(0), "no owner");
  EXPECT_DEATH(pool.AddReference(0), "is free");
  EXPECT_DEATH(pool.Release(1), "block 1 of 1");
}

// Against a model that only counts.
TEST(BlockPoolTest, AgreesWithANaiveModelOnRandomOperations) {
  constexpr int kBlocks = 12;
  const uint64_t seed = 20240611;
  std::cout << "seed " << seed << "\n";
  Random random(seed);
  BlockPool pool(kBlocks);
  struct Model {
    int references = 0, pins = 0;
  };
  std::map<BlockId, Model> model;
  for (int step = 0; step < 100'000; ++step) {
    const BlockId block = static_cast<BlockId>(random.Below(kBlocks));
    Model& m = model[block];
    switch (random.Below(5)) {
      case 0: {
        const int n = static_cast<int>(random.Below(4));
        int free = 0;
        for (BlockId b = 0; b < kBlocks; ++b) free += model[b].references + model[b].pins == 0;
        const absl::StatusOr<std::vector<BlockId>> blocks = pool.Allocate(n);
        ASSERT_EQ(blocks.ok(), n <= free);
        if (!blocks.ok()) break;
        for (const BlockId b : *blocks) {
          ASSERT_EQ(model[b].references + model[b].pins, 0) << "block " << b << " is in use";
          model[b].references = 1;
        }
        break;
      }
      case 1:
        if (m.references > 0) pool.AddReference(block), ++m.references;
        break;
      case 2:
        if (m.references > 0) pool.Release(block), --m.references;
        break;
      case 3:
        if (m.references > 0) pool.Pin(block), ++m.pins;
        break;
      case 4:
        if (m.pins > 0) pool.Unpin(block), --m.pins;
        break;
    }
    BlockCounts counts{.total = kBlocks};
    for (BlockId b = 0; b < kBlocks; ++b) {
      const Model& is = model[b];
      ++(is.pins > 0 ? (is.references > 0 ? counts.in_flight : counts.quarantined)
                     : (is.references > 0 ? counts.held : counts.free));
    }
    ASSERT_EQ(pool.Counts(), counts) << "step " << step;
    if (step % 64 != 0) continue;
    ASSERT_TRUE(pool.Audit().ok()) << pool.Audit();
  }
}

}  // namespace
}  // namespace tandem
