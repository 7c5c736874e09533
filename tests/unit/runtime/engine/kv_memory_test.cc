#include "runtime/engine/kv_memory.h"

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

class KvMemoryTest : public testing::Test {
 protected:
  KvMemoryTest() {
    for (EngineSequence* const sequence : {&first_, &second_}) sequence->spec = &spec_;
  }

  const RequestSpec spec_;
  DiscardingExecutor executor_;
  KvMemory memory_{/*num_blocks=*/8, {.block_tokens = 16}, /*prefix_caching=*/true, &executor_};
  EngineSequence first_, second_;
};

TEST_F(KvMemoryTest, BlocksAreDiscardedWithTheirLastHolder) {
  ASSERT_TRUE(memory_.AppendBlocks(&first_, 2));
  const std::vector<BlockId> blocks = first_.block_table;
  second_.block_table = {blocks[0]};
  memory_.Share(second_.block_table);
  memory_.Release(&first_);
  EXPECT_THAT(executor_.discarded, ElementsAre(blocks[1]));
  memory_.Pin(blocks[0]);
  memory_.Release(&second_);
  EXPECT_THAT(executor_.discarded, ElementsAre(blocks[1]));
  memory_.Unpin(blocks[0]);
  EXPECT_THAT(executor_.discarded, ElementsAre(blocks[1], blocks[0]));
}

// Two choices share a block in whose middle they part: one copies it, the other goes away.
TEST_F(KvMemoryTest, WhatACopyHasYetToReadStays) {
  ASSERT_TRUE(memory_.AppendBlocks(&first_, 1));
  second_.block_table = first_.block_table;
  memory_.Share(second_.block_table);
  first_.num_computed = second_.num_computed = 5;
  ASSERT_EQ(memory_.Grow(&first_, 6), 6);
  ASSERT_EQ(memory_.copies().size(), 1u);
  const BlockCopy copy = memory_.copies().front();
  memory_.Release(&second_);
  EXPECT_THAT(executor_.discarded, IsEmpty());
  memory_.BeginStep(1);
  memory_.FinishStep(1);
  memory_.Release(&first_);
  EXPECT_THAT(executor_.discarded, ElementsAre(copy.destination));
}

}  // namespace
}  // namespace tandem
