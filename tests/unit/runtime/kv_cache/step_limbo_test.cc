#include "runtime/kv_cache/step_limbo.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

class StepLimboTest : public testing::Test {
 protected:
  BlockPool pool_{8};
  StepLimbo limbo_;
};

TEST_F(StepLimboTest, WhatNoStepNamesThatRunsIsFreeAtOnce) {
  limbo_.Release(*pool_.Allocate(3), /*last_step=*/0, &pool_);
  EXPECT_EQ(pool_.num_available(), 8);
  limbo_.Finish(5, &pool_);
  limbo_.Release(*pool_.Allocate(3), /*last_step=*/5, &pool_);
  EXPECT_EQ(pool_.num_available(), 8);
}

TEST_F(StepLimboTest, WhatAStepNamesIsFreeOnceItIsOver) {
  const std::vector<BlockId> first = *pool_.Allocate(3), second = *pool_.Allocate(2);
  limbo_.Release(second, /*last_step=*/2, &pool_);
  limbo_.Release(first, /*last_step=*/1, &pool_);
  EXPECT_EQ(pool_.num_available(), 3);
  limbo_.Finish(1, &pool_);
  EXPECT_EQ(pool_.num_available(), 6);
  limbo_.Finish(2, &pool_);
  EXPECT_EQ(pool_.num_available(), 8);
  EXPECT_TRUE(pool_.Audit().ok());
}

TEST_F(StepLimboTest, EachReferenceCounts) {
  const std::vector<BlockId> blocks = *pool_.Allocate(1);
  pool_.AddReference(blocks[0]);
  limbo_.Release(blocks, /*last_step=*/1, &pool_);
  EXPECT_EQ(limbo_.references(blocks[0]), 1);
  limbo_.Release(blocks, /*last_step=*/2, &pool_);
  EXPECT_EQ(limbo_.references(blocks[0]), 2);
  std::map<BlockId, int32_t> references;
  limbo_.CountReferences(&references);
  EXPECT_EQ(references, (std::map<BlockId, int32_t>{{blocks[0], 2}}));
  limbo_.Finish(1, &pool_);
  EXPECT_EQ(limbo_.references(blocks[0]), 1);
  EXPECT_EQ(pool_.references(blocks[0]), 1);
}

}  // namespace
}  // namespace tandem
