// Requests with many choices: what they have beyond one, others may take.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/base/random.h"
#include "tests/unit/runtime/scheduler/scheduler_fixture.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class SchedulerChoicesTest : public SchedulerTest {
 protected:
  // As the engine does it: who comes after it in its request moves up.
  void FinishAndPassOrderOn(Sequence* ended) {
    Finish(ended);
    finished_.push_back(ended);
    std::vector<Sequence*> siblings;
    for (Sequence& sequence : sequences_) {
      const bool over = std::find(finished_.begin(), finished_.end(), &sequence) != finished_.end();
      if (!over && sequence.rounds == ended->rounds && sequence.order > ended->order) {
        siblings.push_back(&sequence);
      }
    }
    std::sort(siblings.begin(), siblings.end(),
              [](const Sequence* a, const Sequence* b) { return a->order < b->order; });
    uint64_t free = ended->order;
    for (Sequence* sibling : siblings) {
      const uint64_t order = std::exchange(free, sibling->order);
      scheduler_->Reorder(sibling, order);
    }
  }

  std::vector<const Sequence*> finished_;
};

TEST_F(SchedulerChoicesTest, ANewcomerTakesTheBlocksOfChoices) {
  // 8 choices of 2 blocks each have them all.
  Create(/*num_blocks=*/16, /*max_sequences=*/16, /*max_batched_tokens=*/32);
  JoinForks(8, /*num_tokens=*/5);
  Step();
  EXPECT_EQ(blocks_->num_available(), 0);
  Sequence* const newcomer = Enqueue(9);  // 3 blocks, and one for who goes first: of two choices.
  const StepPlan& plan = Step();
  EXPECT_TRUE(Ran(newcomer));
  EXPECT_THAT(plan.preempted, ElementsAre(&sequences_[7], &sequences_[6]));
  EXPECT_THAT(plan.admitted, ElementsAre(newcomer));
  // It keeps them until it ends, and so does the choice that arrived before it.
  for (int step = 0; step < 12; ++step) {
    EXPECT_THAT(Step().preempted, testing::Not(testing::Contains(newcomer)));
    EXPECT_TRUE(Ran(newcomer) && Ran(&sequences_[0]));
  }
}

TEST_F(SchedulerChoicesTest, ANewcomerLeavesABlockToWhoGoesBeforeIt) {
  Create(/*num_blocks=*/16, /*max_sequences=*/16, /*max_batched_tokens=*/32);
  JoinForks(8, /*num_tokens=*/5);
  Step();
  Sequence* const newcomer = Enqueue(13);  // 4 blocks, which two choices have.
  EXPECT_EQ(Step().preempted.size(), 3u);
  EXPECT_TRUE(Ran(newcomer));
  EXPECT_EQ(blocks_->num_available(), 2);
}

TEST_F(SchedulerChoicesTest, AShortNewcomerLeavesThemToALongerPromptThatWaits) {
  Create(/*num_blocks=*/20, /*max_sequences=*/8, /*max_batched_tokens=*/64);
  Enqueue(24);  // 6 blocks.
  Step();
  Enqueue(64);  // 16.
  for (int step = 0; step < 3; ++step) Step();
  JoinForks(3);
  Sequence* const small = Enqueue(3);
  Step();  // The shortest goes first.
  EXPECT_FALSE(Ran(small));
}

TEST_F(SchedulerChoicesTest, WhatIsThroughInAStepGoesBeforeWhoTakesThemWhoeverIsHeldBack) {
  for (int phase = 0; phase < 4; ++phase) {  // Decodes, the oldest, decodes, the shortest.
    SCOPED_TRACE(testing::Message() << "phase " << phase);
    sequences_.clear();
    Create(/*num_blocks=*/100, /*max_sequences=*/1, /*max_batched_tokens=*/17);
    Sequence* const prompt = Enqueue(200);
    Step();
    JoinForks(2);
    const uint64_t held_back = sequences_.size();  // By somebody who waits elsewhere.
    for (int i = 0; i < phase; ++i) Step(held_back);
    Sequence* const brief = Add(1);
    brief->final_tokens = 1;
    scheduler_->Enqueue(brief);
    for (int step = 0; step < 4 && !Ran(brief); ++step) Step(held_back);
    EXPECT_TRUE(Ran(brief));
    EXPECT_LT(prompt->num_computed, 200);
  }
}

TEST_F(SchedulerChoicesTest, NobodyTakesTheBlocksOfAnOnlySequence) {
  Create(/*num_blocks=*/16, /*max_sequences=*/16, /*max_batched_tokens=*/32);
  for (int i = 0; i < 8; ++i) Join(Add(5));
  Sequence* const newcomer = Enqueue(9);
  for (int step = 0; step < 2; ++step) {
    EXPECT_THAT(Step().preempted, IsEmpty());
    EXPECT_FALSE(Ran(newcomer));
  }
}

TEST_F(SchedulerChoicesTest, APromptThatHasBegunTakesWhatItLacks) {
  Create(/*num_blocks=*/13, /*max_sequences=*/8, /*max_batched_tokens=*/16);
  Sequence* const prompt = Enqueue(40);
  Step();
  EXPECT_EQ(prompt->num_computed, 16);
  JoinForks(4);  // Two blocks each.
  while (prompt->num_computed < 40) {
    Step();
    ASSERT_TRUE(Ran(prompt) && Ran(&sequences_[1])) << prompt->num_computed;
  }
}

TEST_F(SchedulerChoicesTest, OneThatMustRunAloneTakesThemToo) {
  Create(/*num_blocks=*/16, /*max_sequences=*/16, /*max_batched_tokens=*/32);
  JoinForks(8);
  Sequence* const alone = Add(9);
  alone->runs_alone = true;
  scheduler_->Enqueue(alone);
  Step();
  Step();
  EXPECT_EQ(alone->num_computed, 9);
}

TEST_F(SchedulerChoicesTest, ChoicesOfTwoRequestsComeToHaveEquallyMany) {
  Create(/*num_blocks=*/16, /*max_sequences=*/16, /*max_batched_tokens=*/64);
  JoinForks(8);
  Step();
  Sequence* last = Enqueue(8);
  for (int i = 1; i < 8; ++i) {
    last = AddSibling(*last, 8);
    scheduler_->Enqueue(last);
  }
  for (int step = 0; step < 40; ++step) Step();
  std::vector<int> running(2);
  for (size_t i = 0; i < sequences_.size(); ++i) {
    running[i / 8] += sequences_[i].state == SequenceState::kRunning;
  }
  EXPECT_GE(running[0], 1);
  EXPECT_NEAR(running[0], running[1], 1);
}

TEST_F(SchedulerChoicesTest, AChoiceHasThePlaceOfItsRequest) {
  Create(/*num_blocks=*/100, /*max_sequences=*/1, /*max_batched_tokens=*/16);
  JoinForks(1);
  Sequence* const choice = AddSibling(sequences_[0], 8);
  scheduler_->Enqueue(choice);
  for (int step = 0; step < 4; ++step) Step();
  EXPECT_GT(choice->num_computed, 0);
}

TEST_F(SchedulerChoicesTest, RoomIsMadeByChoicesAlone) {
  Create(/*num_blocks=*/20, /*max_sequences=*/16, /*max_batched_tokens=*/32);
  JoinForks(8);
  Sequence* const single = Add(16);
  Join(single);
  EXPECT_EQ(blocks_->num_available(), 0);
  // Three of the nine that run have six blocks, and six are left to have one each.
  EXPECT_EQ(scheduler_->MakeRoom(/*order=*/100, /*num_blocks=*/0), 3);
  EXPECT_EQ(blocks_->num_available(), 6);
  EXPECT_EQ(scheduler_->MakeRoom(/*order=*/100, /*num_blocks=*/1000), 4);
  EXPECT_EQ(scheduler_->num_running(), 2);
  EXPECT_EQ(single->state, SequenceState::kRunning);
  EXPECT_EQ(sequences_[0].state, SequenceState::kRunning);
  EXPECT_EQ(scheduler_->MakeRoom(/*order=*/100, /*num_blocks=*/1000), 0);
}

TEST_F(SchedulerChoicesTest, WhoMovesUpIsFoundWhereverItIs) {
  Create(/*num_blocks=*/100, /*max_sequences=*/2, /*max_batched_tokens=*/16);
  JoinForks(3);
  Sequence* const waiting = AddSibling(sequences_[2], 8);
  scheduler_->Enqueue(waiting);
  const uint64_t order = sequences_[0].order;
  FinishAndPassOrderOn(&sequences_[0]);
  EXPECT_EQ(sequences_[1].order, order);
  EXPECT_EQ(RankOf(waiting->order), 2u);
  for (int step = 0; step < 8; ++step) Step();
  EXPECT_GT(waiting->num_computed, 0);
  for (const size_t i : {1, 2, 3}) Finish(&sequences_[i]);
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(blocks_->num_available(), 100);
}

TEST_F(SchedulerChoicesTest, EverythingFinishesUnderRandomLoad) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const auto max_sequences = static_cast<int32_t>(random.Between(1, 6));
    const auto max_tokens = static_cast<int32_t>(random.Between(max_sequences + 1, 24));
    const auto num_blocks = static_cast<int32_t>(random.Between(8, 30));
    sequences_.clear();
    finished_.clear();
    numbers_.clear();
    Create(num_blocks, max_sequences, max_tokens);
    blocks_->set_cached_blocks(static_cast<int32_t>(random.Below(3)));
    std::vector<int32_t> length;  // At which the sequence finishes, by index.
    size_t arrived = 0;
    size_t finished = 0;
    const size_t total = 20;
    for (int step = 0; finished < total; ++step) {
      ASSERT_LT(step, 20'000);
      if (arrived < total && random.Chance(0.3)) {
        const auto tokens = static_cast<int32_t>(random.Between(1, 16));
        Sequence* const sequence =
            arrived > 0 && random.Chance(0.4) ? AddSibling(sequences_.back(), tokens) : Add(tokens);
        sequence->runs_alone = random.Chance(0.1);
        sequence->keeps_blocks = !sequence->runs_alone && random.Chance(0.1);
        length.push_back(
            static_cast<int32_t>(sequence->token_ids.size()) +
            (sequence->keeps_blocks ? 0 : static_cast<int32_t>(random.Between(1, 16))));
        if (random.Chance(0.8)) sequence->final_tokens = length.back();
        scheduler_->Enqueue(sequence);
        ++arrived;
      }
      const StepPlan plan = scheduler_->Schedule();
      ASSERT_LE(static_cast<int32_t>(plan.runs.size()), max_sequences);
      for (const Sequence* sequence : plan.admitted) {
        if (plan.preempted.empty() || sequence->brief()) continue;
        for (const Sequence* gave : plan.preempted) ASSERT_LT(sequence->order, gave->order);
      }
      int32_t tokens = 0;
      for (const ScheduledRun& run : plan.runs) {
        Sequence* const sequence = run.sequence;
        tokens += run.num_tokens;
        ASSERT_GT(run.num_tokens, 0);
        ASSERT_EQ(sequence->state, SequenceState::kRunning);
        ASSERT_GE(static_cast<int32_t>(sequence->block_table.size()) * kBlockTokens,
                  sequence->num_computed + run.num_tokens);
        ASSERT_TRUE(!sequence->runs_alone || plan.runs.size() == 1u);
        sequence->num_computed += run.num_tokens;
        if (sequence->remaining() > 0) continue;
        if (static_cast<int32_t>(sequence->token_ids.size()) >= length[numbers_.at(sequence) - 1]) {
          FinishAndPassOrderOn(sequence);
          ++finished;
        } else {
          sequence->token_ids.push_back(0);
        }
      }
      ASSERT_LE(tokens, max_tokens);
      for (const Sequence* sequence : plan.preempted) ASSERT_FALSE(sequence->keeps_blocks);
    }
    EXPECT_EQ(blocks_->num_available(), num_blocks);
  }
}

}  // namespace
}  // namespace tandem
