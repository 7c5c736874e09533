#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "runtime/base/random.h"
#include "tests/unit/runtime/scheduler/scheduler_fixture.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST_F(SchedulerTest, DecodesComeFirstThenPromptsWithinOneBudget) {
  Create(/*num_blocks=*/100, /*max_sequences=*/8, /*max_batched_tokens=*/16);
  Enqueue(10);
  Enqueue(30);
  Enqueue(5);
  Step();  // The shortest first.
  EXPECT_THAT(ran_, ElementsAre(std::pair(3, 5), std::pair(1, 10), std::pair(2, 1)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1), std::pair(3, 1), std::pair(2, 14)));
  Enqueue(9);
  Step();
  EXPECT_THAT(ran_,
              ElementsAre(std::pair(1, 1), std::pair(3, 1), std::pair(4, 9), std::pair(2, 5)));
  Enqueue(7);
  Step();  // The oldest first.
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1), std::pair(3, 1), std::pair(4, 1), std::pair(2, 10),
                                std::pair(5, 3)));
}

TEST_F(SchedulerTest, TakesBlocksChunkByChunk) {
  Create(/*num_blocks=*/100, 8, 16);
  Sequence* const sequence = Enqueue(40);
  Step();
  EXPECT_EQ(sequence->block_table.size(), 4u);
  Step();
  EXPECT_EQ(sequence->block_table.size(), 8u);
}

TEST_F(SchedulerTest, AdmitsNoMoreSequencesThanABatchHolds) {
  Create(100, /*max_sequences=*/2, 16);
  for (int i = 0; i < 3; ++i) Enqueue(2);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 2), std::pair(2, 2)));
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  Finish(&sequences_[0]);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 1), std::pair(3, 2)));
}

TEST_F(SchedulerTest, LooksAPrefixUpAgainOnlyWhenSomethingHasChanged) {
  Create(/*num_blocks=*/6, /*max_sequences=*/8, /*max_batched_tokens=*/32);
  Sequence* const running = Enqueue(5);  // Two blocks, with room for three more tokens.
  Step();
  Sequence* const waiting = Enqueue(16);  // Four, and one is kept for whoever runs.
  const int before = blocks_->lookups();
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_EQ(running->block_table.size(), 2u);
  EXPECT_EQ(blocks_->lookups(), before + 1);
  Step();
  EXPECT_EQ(running->block_table.size(), 3u);
  EXPECT_EQ(blocks_->lookups(), before + 1 + 1);
  Finish(running);
  Step();
  EXPECT_EQ(waiting->num_computed, 16);
}

TEST_F(SchedulerTest, ManyChoicesOfOneRequestTakeTheTurnsOfOne) {
  Create(/*num_blocks=*/1000, /*max_sequences=*/8, /*max_batched_tokens=*/64);
  JoinForks(128);
  Sequence* const other = Add(8);
  Join(other);
  std::map<uint64_t, int> times;
  for (int step = 0; step < 128 / 7 + 1; ++step) {
    Step();
    EXPECT_EQ(ran_.size(), 8u) << "step " << step;
    EXPECT_TRUE(Ran(other)) << "step " << step;
    for (const auto& [order, tokens] : ran_) ++times[order];
  }
  EXPECT_EQ(times.size(), 129u);  // Every choice has decoded.
}

TEST_F(SchedulerTest, RequestsShareThePlacesEvenly) {
  Create(/*num_blocks=*/1000, /*max_sequences=*/6, /*max_batched_tokens=*/64);
  JoinForks(100);
  JoinForks(3);
  JoinForks(50);
  std::array<int, 3> places{};
  for (int step = 0; step < 100; ++step) {
    Step();
    EXPECT_EQ(ran_.size(), 6u);
    for (const auto& [order, tokens] : ran_) ++places[order <= 100 ? 0 : order <= 103 ? 1 : 2];
  }
  for (const int count : places) EXPECT_NEAR(count, 200, 3);
}

TEST_F(SchedulerTest, SoTheyShareThePlacesThatPromptsHaveNoUseFor) {
  Create(/*num_blocks=*/1000, /*max_sequences=*/4, /*max_batched_tokens=*/64);
  for (int i = 0; i < 6; ++i) Join(Add(8));
  Enqueue(8);  // Younger than as many as a batch holds: has half of the places, and no use for it.
  std::map<size_t, int> times;
  for (int step = 0; step < 30; ++step) {
    Step();
    EXPECT_EQ(ran_.size(), 4u);
    for (const auto& [number, tokens] : ran_) ++times[number];
  }
  for (const auto& [number, count] : times) EXPECT_NEAR(count, 20, 1) << number;
}

TEST_F(SchedulerTest, ANewcomerOfOneTokenRunsWithinThreeStepsBehindAnyNumber) {
  for (const int32_t max_sequences : {1, 2, 8, 64}) {
    for (const int forks : {1, 8, 128}) {
      for (const bool alone : {false, true}) {
        SCOPED_TRACE(testing::Message() << max_sequences << " places, " << forks << " forks"
                                        << (alone ? ", and one that runs alone" : ""));
        sequences_.clear();
        if (max_sequences == 1 && alone) continue;
        Create(/*num_blocks=*/2000, max_sequences, /*max_batched_tokens=*/max_sequences + 16);
        JoinForks(forks);
        for (int i = 0; i < 64; ++i) Join(Add(4));
        for (int i = 0; i < 40; ++i) Enqueue(200);  // Some of them have begun.
        if (alone) {
          Sequence* const sequence = Add(1000);
          sequence->runs_alone = true;
          scheduler_->Enqueue(sequence);
        }
        for (int i = 0; i < 10; ++i) {
          Step();
          EXPECT_TRUE(ran_.size() == static_cast<size_t>(max_sequences) || alone);
        }
        Sequence* const newcomer = Add(1);
        newcomer->final_tokens = 1;
        scheduler_->Enqueue(newcomer);
        int steps = 0;
        do {
          Step();
          ++steps;
        } while (!Ran(newcomer) && steps < 4);
        EXPECT_LE(steps, 4);  // Three, and its own.
        EXPECT_TRUE(Ran(newcomer));
      }
    }
  }
}

TEST_F(SchedulerTest, AShortPromptWaitsForNoLongOneAndALongOneHasHalfOfTheTokens) {
  Create(/*num_blocks=*/10'000, /*max_sequences=*/8, /*max_batched_tokens=*/32);
  Sequence* const first = Enqueue(800);  // 25 steps, alone.
  for (int i = 0; i < 10; ++i) Enqueue(900);
  for (int i = 0; i < 4; ++i) Step();
  EXPECT_EQ(first->num_computed, 4 * 32);
  Sequence* const newcomer = Enqueue(5);
  Step();
  EXPECT_EQ(ran_.front(), std::pair(newcomer->order, 5));
  Finish(newcomer);
  // Ever more of them, which together would leave nothing.
  int steps = 0;
  for (; first->token_ids.size() == 800; ++steps) {
    ASSERT_LT(steps, 2 * 25);
    for (int i = 0; i < 7; ++i) Enqueue(6)->final_tokens = 6;
    Step();
    for (Sequence& sequence : sequences_) {
      if (sequence.final_tokens == 6 && sequence.num_computed == 6) Finish(&sequence);
    }
  }
}

TEST_F(SchedulerTest, OnePlaceIsShortPromptsAndTheOldestOnesAndDecodesInTurn) {
  for (const int phase : {0, 1}) {  // Steps with and without prompts.
    SCOPED_TRACE(testing::Message() << "phase " << phase);
    sequences_.clear();
    Create(/*num_blocks=*/2000, /*max_sequences=*/1, /*max_batched_tokens=*/17);
    JoinForks(3);
    for (Sequence& fork : sequences_) fork.final_tokens = 100;
    for (int i = 0; i < phase; ++i) Step();
    Sequence* const first = Add(85);  // Five steps.
    first->final_tokens = 100;
    scheduler_->Enqueue(first);
    int steps = 0, decodes = 0, brief = 0;
    for (; first->token_ids.size() == 85; ++steps) {
      ASSERT_LT(steps, 4 * 6);
      Enqueue(6)->final_tokens = 6;
      Step();
      ASSERT_EQ(ran_.size(), 1u);
      Sequence& ran = sequences_[ran_.front().first - 1];
      decodes += ran_.front().first <= 3;
      brief += ran.final_tokens == 6;
      if (ran.final_tokens == 6) Finish(&ran);
    }
    EXPECT_GE(decodes, steps / 2 - 1);
    EXPECT_GE(brief, steps / 4 - 1);
  }
}

TEST_F(SchedulerTest, WhereThePromptsThatHaveAPlaceLackBlocksADecodeRuns) {
  Create(/*num_blocks=*/4, /*max_sequences=*/1, /*max_batched_tokens=*/17);
  Sequence* const older = Add(8);
  Sequence* const younger = Add(8);
  Join(older);
  Join(younger);
  Enqueue(8);
  for (int step = 0; step < 12 && older->block_table.size() < 4; ++step) {
    Step();
    ASSERT_FALSE(ran_.empty()) << "step " << step << ": nobody would come back for the next one";
  }
  EXPECT_EQ(older->block_table.size(), 4u);
  EXPECT_EQ(younger->state, SequenceState::kWaiting);
}

TEST_F(SchedulerTest, ShortPromptsDoNotTakeTheBlocksThatALongOneWaitsFor) {
  Create(/*num_blocks=*/20, /*max_sequences=*/8, /*max_batched_tokens=*/64);
  std::deque<Sequence*> running = {Enqueue(24), Enqueue(24)};  // 12 blocks.
  Step();
  Sequence* const large = Enqueue(56);
  for (int step = 0; step < 30; ++step) {
    Enqueue(3);
    Step();
    if (step % 4 == 3 && !running.empty()) {
      Finish(running.front());
      running.pop_front();
    }
    if (large->num_computed > 0) break;
  }
  EXPECT_GT(large->num_computed, 0);
}

TEST_F(SchedulerTest, MoreRequestsThanPlacesDecodeByRoundsWhereEverybodyFits) {
  Create(/*num_blocks=*/30, /*max_sequences=*/4, /*max_batched_tokens=*/16);
  for (int i = 0; i < 4; ++i) {
    Sequence* const sequence = Enqueue(4);
    sequence->final_tokens = 12;  // 3 blocks, and one more that may be copied.
  }
  Step();
  Sequence* const large = Add(4);
  large->final_tokens = 56;  // 15 blocks of the 14 that nobody else may come to need.
  scheduler_->Enqueue(large);
  Sequence* const small = Add(8);
  small->final_tokens = 52;  // 14.
  scheduler_->Enqueue(small);
  Step();
  EXPECT_EQ(large->state, SequenceState::kWaiting);
  EXPECT_TRUE(Ran(small));
  for (int i = 0; i < 5; ++i) {
    Step();
    EXPECT_EQ(ran_.size(), 4u);
  }
  EXPECT_GE(small->num_computed, 10);
  for (int i = 0; i < 4; ++i) EXPECT_GE(sequences_[static_cast<size_t>(i)].num_computed, 7);
}

TEST_F(SchedulerTest, WhatIsThroughInAStepTakesBlocksThatAreKeptForOthers) {
  Create(/*num_blocks=*/8, /*max_sequences=*/2, /*max_batched_tokens=*/16);
  for (int i = 0; i < 3; ++i) Join(Add(8));  // 6 blocks; 2 are left for 3 that run.
  Enqueue(4);                                // Needs one, and waits.
  Sequence* const brief = Add(5);
  brief->final_tokens = 5;
  scheduler_->Enqueue(brief);
  const StepPlan& plan = Step();
  EXPECT_TRUE(Ran(brief));
  EXPECT_THAT(plan.admitted, ElementsAre(brief));
  Sequence* const long_brief = Add(17);  // Two steps: it would keep what it takes.
  long_brief->final_tokens = 17;
  Finish(brief);
  scheduler_->Enqueue(long_brief);
  Step();
  EXPECT_FALSE(Ran(long_brief));
}

TEST_F(SchedulerTest, AllForksOfARequestHaveItsOnePlace) {
  Create(/*num_blocks=*/1000, /*max_sequences=*/4, /*max_batched_tokens=*/16);
  JoinForks(6);
  Sequence* const newcomer = Enqueue(4);
  Step();
  EXPECT_TRUE(Ran(newcomer));
}

TEST_F(SchedulerTest, OfTwoThatFitEachButNotTogetherOneIsAdmitted) {
  Create(/*num_blocks=*/20, /*max_sequences=*/4, /*max_batched_tokens=*/40);
  for (int i = 0; i < 4; ++i) {
    Sequence* const older = Add(5);  // 2 blocks of the 3 that it may come to need.
    older->final_tokens = 8;
    Join(older);
  }
  for (int i = 0; i < 2; ++i) {
    Sequence* const newcomer = Add(4);
    newcomer->final_tokens = 20;  // 6 of the 8 blocks that nobody else may come to need.
    scheduler_->Enqueue(newcomer);
  }
  EXPECT_EQ(Step().admitted.size(), 1u);
  blocks_->Take(-4);  // What the other lacked.
  EXPECT_EQ(Step().admitted.size(), 1u);
}

TEST_F(SchedulerTest, ABriefPromptThatLackedBlocksIsTriedAgain) {
  Create(/*num_blocks=*/8, /*max_sequences=*/2, /*max_batched_tokens=*/16);
  for (int i = 0; i < 3; ++i) Join(Add(8));  // 6 blocks.
  blocks_->Take(2);
  Sequence* const brief = Add(5);
  brief->final_tokens = 5;
  scheduler_->Enqueue(brief);
  Step();
  EXPECT_FALSE(Ran(brief));
  blocks_->Take(-2);  // Too few for anybody else beside 3 that run.
  Step();
  EXPECT_TRUE(Ran(brief));
}

TEST_F(SchedulerTest, TheYoungestGivesItsOwnBlocksWhereAnotherCouldUseThem) {
  Create(/*num_blocks=*/4, 8, 16);
  Join(Add(6));
  Sequence* const young = Add(8);
  Join(young);
  Step();
  EXPECT_EQ(ran_.size(), 2u);
  const StepPlan& plan = Step();  // Its ninth token has no block.
  EXPECT_THAT(plan.preempted, ElementsAre(young));
  EXPECT_EQ(blocks_->num_available(), 2);
}

TEST_F(SchedulerTest, WhatWaitsIsThePromptsNotTheDecodes) {
  Create(/*num_blocks=*/100, /*max_sequences=*/8, /*max_batched_tokens=*/16);
  Join(Add(8));
  EXPECT_EQ(scheduler_->waiting_tokens(), 0);
  Enqueue(30);
  EXPECT_EQ(scheduler_->waiting_tokens(), 30);
  Step();
  EXPECT_EQ(scheduler_->waiting_tokens(), 15) << "half of it runs";
}

TEST_F(SchedulerTest, ANewcomerHasNotTheTurnsThatItMissed) {
  Create(/*num_blocks=*/100, /*max_sequences=*/1, /*max_batched_tokens=*/16);
  Sequence* const old = Add(8);
  Join(old);
  for (int i = 0; i < 50; ++i) Step();
  Join(Add(8));
  int decodes = 0;
  for (int i = 0; i < 10; ++i) {
    Step();
    decodes += Ran(old) ? 1 : 0;
  }
  EXPECT_GE(decodes, 4);
}

TEST_F(SchedulerTest, AChunkThatLacksBlocksSaysSo) {
  Create(/*num_blocks=*/5, /*max_sequences=*/8, /*max_batched_tokens=*/16);
  Sequence* const prompt = Enqueue(30);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 16)));
  const StepPlan& plan = Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 4)));
  EXPECT_EQ(plan.blocked_order, prompt->order);
}

TEST_F(SchedulerTest, OfPromptsThatWaitForEachOtherNoMoreThanNeededGiveUp) {
  Create(/*num_blocks=*/9, /*max_sequences=*/8, /*max_batched_tokens=*/16);
  for (int i = 0; i < 3; ++i) {
    Sequence* const prompt = Add(30);
    prompt->num_computed = blocks_->Grow(prompt, 12);
    scheduler_->Join(prompt);
  }
  EXPECT_EQ(Step().preempted.size(), 1u);
}

TEST_F(SchedulerTest, AnOldPromptGetsItsPlaceHoweverManyJoin) {
  Create(/*num_blocks=*/1000, /*max_sequences=*/4, /*max_batched_tokens=*/16);
  Sequence* const old = Add(20);  // Preempted, say: it waits, with more running than a batch holds.
  for (int i = 0; i < 6; ++i) Join(Add(8));
  Step();
  EXPECT_THAT(ran_,
              ElementsAre(std::pair(2, 1), std::pair(3, 1), std::pair(4, 1), std::pair(5, 1)));
  scheduler_->Enqueue(old);
  Step();
  EXPECT_THAT(ran_,
              ElementsAre(std::pair(2, 1), std::pair(6, 1), std::pair(7, 1), std::pair(1, 13)));
  Step();
  EXPECT_THAT(ran_,
              ElementsAre(std::pair(3, 1), std::pair(4, 1), std::pair(5, 1), std::pair(1, 7)));
  Enqueue(3);  // Younger than a batch of others, and nobody knows how long it will be: waits.
  Step();
  EXPECT_EQ(ran_.size(), 4u);
  EXPECT_EQ(scheduler_->num_waiting(), 1);
}

TEST_F(SchedulerTest, DecodeWithoutABlockPreemptsTheYoungestAndAdmitsNobody) {
  Create(/*num_blocks=*/4, 8, 16);
  Sequence* const old = Enqueue(7);    // 2 blocks, a third after one more token.
  Sequence* const young = Enqueue(7);  // The other 2.
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 7)));  // One block of headroom for the first.
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1)));
  scheduler_->Remove(young);
  ASSERT_EQ(blocks_->Grow(young, 7), 7);
  young->num_computed = 7;
  young->token_ids.push_back(0);
  scheduler_->Join(young);  // As after a transfer: the pool is full.
  Enqueue(1);
  const StepPlan& plan = Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1)));
  EXPECT_THAT(plan.preempted, ElementsAre(young));
  EXPECT_THAT(plan.admitted, IsEmpty());
  EXPECT_EQ(young->num_computed, 0);
  EXPECT_EQ(young->token_ids.size(), 8u);
  EXPECT_EQ(plan.blocked_order, young->order);
  Finish(old);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 8), std::pair(3, 1)));
}

TEST_F(SchedulerTest, ADecodeHasBlocksForWhatItMayDrawUpToItsEnd) {
  Create(100);
  Sequence* const decode = Add(5);
  decode->lookahead_tokens = 8;  // The last of 5 + 8 tokens begins a block.
  Sequence* const ends_soon = Add(5);
  ends_soon->lookahead_tokens = 9;
  ends_soon->final_tokens = 8;
  Join(decode);
  Join(ends_soon);
  Step();
  EXPECT_THAT(decode->block_table, SizeIs(4));
  EXPECT_THAT(ends_soon->block_table, SizeIs(2));
}

TEST_F(SchedulerTest, NobodyIsPreemptedForWhatADecodeMayDraw) {
  Create(5);
  Sequence* const first = Add(8);
  Sequence* const second = Add(8);
  first->lookahead_tokens = second->lookahead_tokens = 9;
  Join(first);
  Join(second);
  EXPECT_THAT(Step().preempted, IsEmpty());
  EXPECT_THAT(ran_, SizeIs(2));
  EXPECT_THAT(first->block_table, SizeIs(3)) << "the last free one";
  EXPECT_THAT(second->block_table, SizeIs(2));
  EXPECT_THAT(Step().preempted, ElementsAre(second));
}

TEST_F(SchedulerTest, WholeSequenceStartsOnlyWithAllItsBlocksAndIsNeverPreempted) {
  Create(/*num_blocks=*/10, 4, 8);
  Sequence* const first = Enqueue(4);
  Sequence* const whole = Add(36);
  whole->keeps_blocks = true;
  scheduler_->Enqueue(whole);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 4)));
  Finish(first);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 8)));
  EXPECT_EQ(whole->block_table.size(), 9u);

  Sequence* const joined = Add(4);
  joined->order = 0;  // Older than everything.
  ASSERT_EQ(blocks_->Grow(joined, 4), 4);
  joined->num_computed = 4;
  joined->token_ids.push_back(0);
  scheduler_->Join(joined);
  const StepPlan& plan = Step();  // The pool is full; only `joined` itself could give way.
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 8)));
  EXPECT_EQ(plan.blocked_order, 0u);
}

TEST_F(SchedulerTest, SequencesThatRunAloneAlternateWithSharedBatches) {
  Create(100);
  Enqueue(4);
  Sequence* const alone = Add(20);
  alone->runs_alone = true;
  scheduler_->Enqueue(alone);
  Enqueue(4);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 16)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 4), std::pair(3, 4)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 4)));
  Finish(&sequences_[0]);
  Finish(&sequences_[2]);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 1)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 1)));
}

TEST_F(SchedulerTest, ASequenceThatRunsAloneComputesSmallChunks) {
  Create(/*num_blocks=*/1'000, /*max_sequences=*/8, /*max_batched_tokens=*/512);
  Sequence* const alone = Add(3 * kMaxAloneChunkTokens + 5);
  alone->runs_alone = true;
  scheduler_->Enqueue(alone);
  for (const int32_t tokens : {64, 64, 64, 5, 1}) {
    Step();
    EXPECT_THAT(ran_, ElementsAre(std::pair(alone->order, tokens)));
  }
  scheduler_->Remove(alone);
  Sequence* const other = Enqueue(300);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(other->order, 300)));
}

TEST_F(SchedulerTest, AnOlderClaimElsewhereHoldsBackYoungerAdmissions) {
  Create(100);
  Enqueue(2);
  Enqueue(2);
  const StepPlan& plan = scheduler_->Schedule(/*admit_before=*/1);
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.runs[0].sequence->order, 1u);
}

TEST_F(SchedulerTest, BlockedHeadOfTheQueueIsNotOvertaken) {
  Create(/*num_blocks=*/4, 8, 16);
  Enqueue(9);  // 3 blocks.
  Step();
  Enqueue(8);  // Would need 2.
  Step();      // The oldest went first.
  Enqueue(1);  // Would fit.
  for (int i = 0; i < 2; ++i) {
    const StepPlan& plan = Step();
    EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1)));
    EXPECT_EQ(plan.blocked_order, 2u);
  }
  EXPECT_EQ(scheduler_->num_waiting(), 2);
}

TEST_F(SchedulerTest, NorIsWhoMustRunAlone) {
  Create(/*num_blocks=*/6, 8, 16);
  Sequence* const running = Enqueue(9);  // 3 blocks.
  Step();
  Sequence* const alone = Add(16);  // 4.
  alone->runs_alone = true;
  scheduler_->Enqueue(alone);
  Enqueue(1);  // Would fit.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Step().blocked_order, alone->order);
    EXPECT_EQ(scheduler_->num_waiting(), 2);
  }
  Finish(running);
  Step();
  EXPECT_TRUE(Ran(alone));
}

TEST_F(SchedulerTest, RemoveIsIdempotentWhereverTheSequenceIs) {
  Create(100);
  Sequence* const running = Enqueue(2);
  Step();
  Sequence* const waiting = Enqueue(2);
  for (int i = 0; i < 2; ++i) {
    Finish(running);
    Finish(waiting);
  }
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(blocks_->num_available(), 100);
}

TEST_F(SchedulerTest, WhoeverMustRunAloneIsCountedFromEnqueueToRemove) {
  Create(100);
  Sequence* const running = Add(20);
  Sequence* const waiting = Add(20);
  running->runs_alone = waiting->runs_alone = true;
  scheduler_->Enqueue(running);
  scheduler_->Enqueue(waiting);
  Step();
  EXPECT_EQ(scheduler_->num_alone(), 2);
  Finish(waiting);
  EXPECT_EQ(scheduler_->num_alone(), 1);
  Finish(running);
  EXPECT_EQ(scheduler_->num_alone(), 0);
}

}  // namespace
}  // namespace tandem
