// Schedules that are made while a step runs.

#include <gmock/gmock.h>

#include "tests/unit/runtime/scheduler/scheduler_fixture.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class SchedulerOverlapTest : public SchedulerTest {
 protected:
  // The step begins: what it computes counts, what it draws is not known.
  const StepPlan& Begin() {
    const StepPlan& plan = scheduler_->Schedule();
    ran_.clear();
    for (const ScheduledRun& run : plan.runs) {
      ran_.emplace_back(numbers_.at(run.sequence), run.num_tokens);
      run.sequence->num_computed += run.num_tokens;
    }
    scheduler_->HoldPreemption(true);
    return plan;
  }
};

TEST_F(SchedulerOverlapTest, WhoAwaitsItsNextTokenIsLeftOut) {
  Create(100);
  Join(Add(5));
  Join(Add(6));
  Begin();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1), std::pair(2, 1)));
  Begin();
  EXPECT_THAT(ran_, IsEmpty());
  sequences_[0].token_ids.push_back(0);
  Begin();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1)));
}

TEST_F(SchedulerOverlapTest, WhoIsHeldIsLeftOut) {
  Create(100);
  Sequence* const prompt = Enqueue(40);
  Begin();
  prompt->held = true;
  Enqueue(3);
  Begin();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 3)));
  prompt->held = false;
  Begin();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 16)));
}

TEST_F(SchedulerOverlapTest, ADecodeThatLacksABlockWaits) {
  Create(/*num_blocks=*/4);
  Join(Add(8));
  Join(Add(8));
  Begin();
  for (Sequence& sequence : sequences_) sequence.token_ids.push_back(0);
  EXPECT_FALSE(scheduler_->preemption_wanted());
  const StepPlan& plan = Begin();
  EXPECT_THAT(ran_, IsEmpty());
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_EQ(plan.blocked_order, 1u);
  EXPECT_TRUE(scheduler_->preemption_wanted());
  scheduler_->HoldPreemption(false);
  EXPECT_FALSE(scheduler_->preemption_wanted());
  EXPECT_THAT(Begin().preempted, ElementsAre(&sequences_[1]));
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1)));
}

TEST_F(SchedulerOverlapTest, WhereNobodyCouldBePreemptedItIsNotWanted) {
  Create(/*num_blocks=*/3);
  blocks_->Take(1);
  Join(Add(8));
  Begin();
  sequences_[0].token_ids.push_back(0);
  EXPECT_EQ(Begin().blocked_order, 1u);
  EXPECT_FALSE(scheduler_->preemption_wanted());
  EXPECT_EQ(scheduler_->MakeRoom(/*order=*/1, 1), 0);
  EXPECT_FALSE(scheduler_->preemption_wanted());
}

TEST_F(SchedulerOverlapTest, APromptThatLacksABlockWaits) {
  Create(/*num_blocks=*/5);
  Sequence* const prompt = Enqueue(20);
  Begin();  // Its first 16 tokens.
  Join(Add(4));
  sequences_[1].held = true;
  EXPECT_THAT(Begin().preempted, IsEmpty());
  EXPECT_THAT(ran_, IsEmpty());
  EXPECT_TRUE(scheduler_->preemption_wanted());
  scheduler_->HoldPreemption(false);
  EXPECT_THAT(Begin().preempted, ElementsAre(&sequences_[1]));
  EXPECT_EQ(prompt->remaining(), 0);
}

TEST_F(SchedulerOverlapTest, RoomForATransferIsMadeWhenNoStepRuns) {
  Create(/*num_blocks=*/6);
  JoinForks(3);
  Begin();
  EXPECT_EQ(scheduler_->MakeRoom(/*order=*/9, 1), 0);
  EXPECT_TRUE(scheduler_->preemption_wanted());
  scheduler_->HoldPreemption(false);
  EXPECT_GT(scheduler_->MakeRoom(/*order=*/9, 1), 0);
}

}  // namespace
}  // namespace tandem
