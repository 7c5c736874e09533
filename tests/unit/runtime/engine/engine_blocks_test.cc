#include "runtime/engine/engine_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class DiscardingExecutor final : public SynchronousExecutor {
 public:
  absl::Status Execute(const StepInput&, StepOutput*) override { return absl::OkStatus(); }
  uint32_t BlockChecksum(BlockId) override { return 0; }
  void Discard(BlockId block) override { discarded.push_back(block); }
  uint64_t work_done() const override { return 0; }

  std::vector<BlockId> discarded;
};

class EngineBlocksTest : public testing::Test {
 protected:
  EngineBlocksTest() {
    for (EngineSequence* const sequence : {&first_, &second_}) sequence->spec = &spec_;
  }

  const RequestSpec spec_;
  DiscardingExecutor executor_;
  EngineBlocks blocks_{/*num_blocks=*/8, {.block_tokens = 16}, /*prefix_caching=*/true, &executor_};
  EngineSequence first_, second_;
};

TEST_F(EngineBlocksTest, BlocksAreDiscardedWithTheirLastHolder) {
  ASSERT_TRUE(blocks_.AppendBlocks(&first_, 2));
  const std::vector<BlockId> blocks = first_.block_table;
  second_.block_table = {blocks[0]};
  blocks_.Share(second_.block_table);
  blocks_.Release(&first_);
  EXPECT_THAT(executor_.discarded, ElementsAre(blocks[1]));
  blocks_.Pin(blocks[0]);
  blocks_.Release(&second_);
  EXPECT_THAT(executor_.discarded, ElementsAre(blocks[1]));
  blocks_.Unpin(blocks[0]);
  EXPECT_THAT(executor_.discarded, ElementsAre(blocks[1], blocks[0]));
}

// Two choices share a block in whose middle they part: one copies it, the other goes away.
TEST_F(EngineBlocksTest, WhatACopyHasYetToReadStays) {
  ASSERT_TRUE(blocks_.AppendBlocks(&first_, 1));
  second_.block_table = first_.block_table;
  blocks_.Share(second_.block_table);
  first_.num_computed = second_.num_computed = 5;
  ASSERT_EQ(blocks_.Grow(&first_, 6), 6);
  ASSERT_EQ(blocks_.copies().size(), 1u);
  const BlockCopy copy = blocks_.copies().front();
  blocks_.Release(&second_);
  EXPECT_THAT(executor_.discarded, IsEmpty());
  blocks_.BeginStep(1);
  blocks_.FinishStep(1);
  blocks_.Release(&first_);
  EXPECT_THAT(executor_.discarded, ElementsAre(copy.destination));
}

class OverlappingExecutor final : public Executor {
 public:
  bool overlaps_steps() const override { return true; }
  int32_t max_drawn() const override { return 1; }
  void Begin(const StepInput&) override {}
  void BeginDraws(int32_t, std::span<const Draw>) override {}
  absl::StatusOr<StepOutput*> Finish() override { return &output_; }
  uint32_t BlockChecksum(BlockId) override { return 0; }
  void Discard(BlockId) override {}
  uint64_t work_done() const override { return 0; }

 private:
  StepOutput output_;
};

TEST_F(EngineBlocksTest, WhatATransportStillReadsIsCopiedWhereStepsOverlapToo) {
  OverlappingExecutor executor;
  EngineBlocks blocks(/*num_blocks=*/8, {.block_tokens = 16}, /*prefix_caching=*/true, &executor);
  ASSERT_TRUE(blocks.AppendBlocks(&first_, 1));
  const BlockId pinned = first_.block_table.front();
  blocks.Pin(pinned);
  first_.num_computed = 5;
  ASSERT_EQ(blocks.Grow(&first_, 6), 6);
  EXPECT_NE(first_.block_table.front(), pinned);
  EXPECT_THAT(blocks.copies(), testing::SizeIs(1));
  blocks.Unpin(pinned);
}

}  // namespace
}  // namespace tandem
