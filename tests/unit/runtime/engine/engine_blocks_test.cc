#include "runtime/engine/engine_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class DiscardingExecutor final : public SynchronousExecutor {
 public:
  absl::Status Execute(const StepInput&, StepOutput*) override { return absl::OkStatus(); }
  absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) override {
    checksummed.emplace_back(blocks.begin(), blocks.end());
    if (fails) return absl::InternalError("no device");
    for (const BlockId block : blocks) *crc32c++ = 100 + static_cast<uint32_t>(block);
    return absl::OkStatus();
  }
  void Discard(BlockId block) override { discarded.push_back(block); }
  uint64_t work_done() const override { return 0; }

  bool fails = false;
  std::vector<std::vector<BlockId>> checksummed;  // By call.

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

TEST_F(EngineBlocksTest, ChecksumsThatAreNotKnownAreAskedForTogether) {
  ASSERT_TRUE(blocks_.AppendBlocks(&first_, 3));
  const std::vector<BlockId> blocks = first_.block_table;
  uint32_t sums[3] = {};
  ASSERT_TRUE(blocks_.Checksums({&blocks[1], 1}, sums).ok());
  executor_.fails = true;
  EXPECT_FALSE(blocks_.Checksums(blocks, sums).ok());
  executor_.fails = false;
  ASSERT_TRUE(blocks_.Checksums(blocks, sums).ok());
  const std::vector<BlockId> others = {blocks[0], blocks[2]};
  EXPECT_THAT(executor_.checksummed, ElementsAre(ElementsAre(blocks[1]), others, others));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(sums[i], 100 + static_cast<uint32_t>(blocks[i]));
  ASSERT_TRUE(blocks_.Checksums(blocks, sums).ok());
  EXPECT_THAT(executor_.checksummed, SizeIs(3)) << "all are known";
  blocks_.Release(&first_);
  ASSERT_TRUE(blocks_.AppendBlocks(&first_, 3));
  ASSERT_TRUE(blocks_.Checksums(first_.block_table, sums).ok());
  EXPECT_THAT(executor_.checksummed.back(), SizeIs(3)) << "another life";
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
  EXPECT_EQ(blocks_.num_available(), 6) << "nobody is to get it: " << copy.source;
  blocks_.BeginStep(1);
  EXPECT_EQ(blocks_.num_available(), 6);
  blocks_.FinishStep(1);
  EXPECT_THAT(executor_.discarded, ElementsAre(copy.source));
  EXPECT_EQ(blocks_.num_available(), 7);
  blocks_.Release(&first_);
  EXPECT_THAT(executor_.discarded, ElementsAre(copy.source, copy.destination));
}

TEST_F(EngineBlocksTest, TheLastOfTheChoicesWritesWhereItIs) {
  ASSERT_TRUE(blocks_.AppendBlocks(&first_, 1));
  second_.block_table = first_.block_table;
  blocks_.Share(second_.block_table);
  first_.num_computed = second_.num_computed = 5;
  ASSERT_EQ(blocks_.Grow(&first_, 6), 6);
  ASSERT_EQ(blocks_.Grow(&second_, 6), 6);
  EXPECT_THAT(blocks_.copies(), SizeIs(1)) << "copies run before it writes";
}

class OverlappingExecutor final : public Executor {
 public:
  bool overlaps_steps() const override { return true; }
  int32_t max_drawn() const override { return 1; }
  void Begin(const StepInput&) override {}
  void BeginDraws(int32_t, std::span<const Draw>) override {}
  absl::StatusOr<StepOutput*> Finish() override { return &output_; }
  absl::Status BlockChecksums(std::span<const BlockId>, uint32_t*) override {
    return absl::OkStatus();
  }
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
  EXPECT_THAT(blocks.copies(), SizeIs(1));
  blocks.Unpin(pinned);
}

}  // namespace
}  // namespace tandem
