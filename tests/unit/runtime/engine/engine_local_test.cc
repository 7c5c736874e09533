// One engine, no peers: scheduling, caching, sampling borders, endings.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "tests/support/engine_cases.h"
#include "tests/support/engine_fleet.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class EngineLocalTest : public testing::Test {
 protected:
  void TearDown() override {
    if (created_) {
      EXPECT_EQ(fleet_.AuditQuiet(), "");
    }
  }
  void Create(const EngineOptions& options = SmallEngine(), int32_t failing_token = -1) {
    fleet_.AddWorker({.engine = options, .failing_token = failing_token});
    created_ = true;
  }
  void Run() { ASSERT_TRUE(fleet_.RunUntilQuiet()); }
  // Steps until the attempt has delivered a token.
  void RunUntilFirstToken(const Submit& submit) {
    while (fleet_.record(submit.attempt).tokens.empty()) ASSERT_TRUE(fleet_.RunOne());
  }
  // A prompt of 100 tokens beside an older request that takes its last blocks while it waits for
  // one more.
  void RunPreempted(const Submit& prompt) {
    EngineOptions options = SmallEngine(/*num_blocks=*/8);
    options.max_batched_tokens = 9;
    Create(options);
    const Submit older = MakeSubmit(1, RandomTokens(20, 1), 30);
    fleet_.Submit(0, older);
    RunUntilFirstToken(older);
    fleet_.Submit(0, prompt);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(older), "");
    EXPECT_EQ(fleet_.CheckFinished(prompt), "");
    EXPECT_GT(computed(), 20 + 29 + 100 + 2) << "nobody was preempted: the case is too easy";
  }
  int64_t computed() { return fleet_.executor(0).computed_tokens(); }

  EngineFleet fleet_;
  bool created_ = false;
};

TEST_F(EngineLocalTest, BatchedRequestsGiveTheTokensOfRequestsAlone) {
  Create();
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 12; ++i) {
    submits.push_back(
        MakeSubmit(i, RandomTokens(static_cast<int32_t>(7 * i), i), static_cast<int32_t>(i) + 3));
    fleet_.Submit(0, submits.back());
  }
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.executor(0).largest_batch(), 8);
}

TEST_F(EngineLocalTest, ChunkSizeDoesNotShow) {
  for (int32_t budget : {9, 16, 17, 100, 400}) {
    SCOPED_TRACE(budget);
    EngineFleet fleet;
    EngineOptions options = SmallEngine();
    options.max_batched_tokens = budget;
    fleet.AddWorker({.engine = options});
    Submit submit = MakeSubmit(1, RandomTokens(333, 5), 20, 2);
    submit.spec.sampling.num_logprobs = 3;
    submit.spec.sampling.num_prompt_logprobs = 2;
    fleet.Submit(0, submit);
    ASSERT_TRUE(fleet.RunUntilQuiet());
    EXPECT_EQ(fleet.CheckFinished(submit), "");
    EXPECT_EQ(fleet.AuditQuiet(), "");
  }
}

TEST_F(EngineLocalTest, PreemptedSequencesRecomputeToTheSameTokens) {
  Create(SmallEngine(/*num_blocks=*/12));
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 6; ++i) {
    submits.push_back(MakeSubmit(i, RandomTokens(20, i), 100));
    fleet_.Submit(0, submits.back());
  }
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_GT(computed(), 6 * 119) << "nothing was recomputed: the case is too easy";
}

TEST_F(EngineLocalTest, PreemptionInTheMiddleOfPromptLogprobsLosesNone) {
  Submit scored = MakeSubmit(2, RandomTokens(100, 2), 3);
  scored.spec.sampling.num_prompt_logprobs = 1;
  RunPreempted(scored);
  EXPECT_THAT(fleet_.record(scored.attempt).ended, IsEmpty());
}

TEST_F(EngineLocalTest, CachedPrefixIsNotComputedAgain) {
  Create();
  const std::vector<int32_t> prompt = RandomTokens(100, 3);
  const Submit first = MakeSubmit(1, prompt, 4);
  fleet_.Submit(0, first);
  Run();
  const int64_t before = computed();
  const Submit again = MakeSubmit(2, prompt, 4);
  fleet_.Submit(0, again);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(again), "");
  EXPECT_EQ(computed() - before, 4 + 3);  // 96 of 100 cached; 3 decodes.
  EXPECT_EQ(fleet_.record(again.attempt).prompts[0].cached_tokens, 96);
  EXPECT_EQ(fleet_.record(first.attempt).prompts[0].cached_tokens, 0);
}

TEST_F(EngineLocalTest, LastPromptTokenIsComputedEvenIfEveryBlockIsCached) {
  Create();
  const std::vector<int32_t> prompt = RandomTokens(64, 3);
  fleet_.Submit(0, MakeSubmit(1, prompt, 4));
  Run();
  const Submit again = MakeSubmit(2, prompt, 4);
  fleet_.Submit(0, again);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(again), "");
  EXPECT_EQ(fleet_.record(again.attempt).prompts[0].cached_tokens, 48);
}

TEST_F(EngineLocalTest, GeneratedTokensAreCachedForTheNextTurn) {
  Create();
  const Submit first = MakeSubmit(1, RandomTokens(30, 3), 40);
  fleet_.Submit(0, first);
  Run();
  std::vector<int32_t> conversation = first.spec.token_ids;
  for (const SampledToken& t : fleet_.record(first.attempt).tokens.at(0)) {
    conversation.push_back(t.token);
  }
  conversation.push_back(7);
  const Submit next = MakeSubmit(2, conversation, 4);
  fleet_.Submit(0, next);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(next), "");
  EXPECT_EQ(fleet_.record(next.attempt).prompts[0].cached_tokens, 64);
}

TEST_F(EngineLocalTest, PromptLogprobsTakeNoHits) {
  Create();
  const std::vector<int32_t> prompt = RandomTokens(100, 3);
  fleet_.Submit(0, MakeSubmit(1, prompt, 4));
  Run();
  Submit again = MakeSubmit(2, prompt, 4);
  again.spec.sampling.num_prompt_logprobs = 5;
  fleet_.Submit(0, again);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(again), "");
  EXPECT_EQ(fleet_.record(again.attempt).prompts[0].cached_tokens, 0);
}

TEST_F(EngineLocalTest, ChoicesShareThePromptAndCopyOnlyItsTail) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(40, 3), 10, /*num_choices=*/4);
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(), 40 + 4 * 9);
  EXPECT_EQ(fleet_.executor(0).copied_blocks(), 3);
  EXPECT_THAT(fleet_.record(submit.attempt).tokens, SizeIs(4));
}

TEST_F(EngineLocalTest, ChoicesOfAPromptThatEndsWithABlockCopyNothing) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(32, 3), 10, /*num_choices=*/4);
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.executor(0).copied_blocks(), 0);
}

TEST_F(EngineLocalTest, MoreChoicesThanABatchHoldsAllFinish) {
  Create(SmallEngine(/*num_blocks=*/16));
  const Submit submit = MakeSubmit(1, RandomTokens(20, 3), 30, /*num_choices=*/20);
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineLocalTest, ARequestOfOneTokenDoesNotWaitForTheChoicesOfAnother) {
  Create(SmallEngine(/*num_blocks=*/700));
  const Submit many = MakeSubmit(1, RandomTokens(20, 3), 40, /*num_choices=*/128);
  fleet_.Submit(0, many);
  for (uint64_t i = 2; i < 12; ++i) {  // More than a batch holds.
    fleet_.Submit(0, MakeSubmit(i, RandomTokens(20, i), 40));
  }
  RunUntilFirstToken(many);
  for (uint64_t i = 20; i < 30; ++i) {
    for (int step = 0; step < static_cast<int>(i); ++step) ASSERT_TRUE(fleet_.RunOne());
    const uint64_t before = fleet_.executor(0).work_done();
    const Submit newcomer = MakeSubmit(i, RandomTokens(static_cast<int32_t>(i), i), 1);
    fleet_.Submit(0, newcomer);
    RunUntilFirstToken(newcomer);
    EXPECT_LE(fleet_.executor(0).work_done() - before, 4u);  // Three, and its own.
    EXPECT_EQ(fleet_.CheckFinished(newcomer), "");
  }
  Run();
  EXPECT_EQ(fleet_.CheckFinished(many), "");
  EXPECT_EQ(fleet_.executor(0).largest_batch(), 8);
}

TEST_F(EngineLocalTest, AFullQueueSaysHowSoonSomebodyLeavesIt) {
  EngineOptions options = SmallEngine();
  options.max_waiting_attempts = 2;
  options.max_sequences = 1;
  options.max_batched_tokens = 10;  // One leaves the queue with each step.
  Create(options);
  uint64_t counter = 0;
  const auto submit = [&] {
    ++counter;
    const Submit submitted = MakeSubmit(counter, RandomTokens(10, counter), 1);
    fleet_.Submit(0, submitted);
    return submitted;
  };
  const auto refused = [&] {
    const AttemptId attempt = submit().attempt;
    EXPECT_THAT(fleet_.record(attempt).refused, SizeIs(1));
    return static_cast<double>(fleet_.record(attempt).retry_after_us);
  };
  std::deque<Submit> waiting = {submit(), submit()};
  const auto leave = [&](int times, int64_t every_us) {
    for (int i = 0; i < times; ++i) {
      fleet_.Advance(every_us);
      RunUntilFirstToken(waiting.front());
      waiting.pop_front();
      waiting.push_back(submit());
    }
  };
  EXPECT_EQ(refused(), 10'000) << "nothing is known yet";
  leave(30, 200'000);
  EXPECT_NEAR(refused(), 200'000, 2'000);
  for (const Submit& last : waiting) {
    fleet_.Advance(200'000);
    RunUntilFirstToken(last);
  }
  Run();
  fleet_.Advance(60'000'000);
  waiting = {submit(), submit()};
  leave(1, 0);
  EXPECT_NEAR(refused(), 200'000, 2'000) << "while nobody waited nobody could leave";
  leave(10, 5'000'000);
  EXPECT_EQ(refused(), 1'000'000) << "at most";
  Run();
  const Submit wrong = MakeSubmit(++counter, {}, 1);
  fleet_.Submit(0, wrong);
  EXPECT_THAT(fleet_.record(wrong.attempt).refused, SizeIs(1));
  EXPECT_EQ(fleet_.record(wrong.attempt).retry_after_us, 0) << "it would be refused again";
}

TEST_F(EngineLocalTest, StopTokensEndAChoiceButNotBeforeMinTokens) {
  Create();
  Submit submit = MakeSubmit(1, RandomTokens(20, 3), 50);
  const std::vector<SampledToken> free_run =
      SimulatedModel().Generate(submit.spec.token_ids, 0, submit.spec.sampling);
  submit.spec.sampling.stop_token_ids = {free_run[2].token, 1'000'000};
  fleet_.Submit(0, submit);
  Submit longer = submit;
  longer.attempt.request.counter = 2;
  longer.spec.sampling.min_tokens = 10;
  fleet_.Submit(0, longer);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_THAT(fleet_.record(submit.attempt).tokens.at(0), SizeIs(3));
  EXPECT_EQ(fleet_.record(submit.attempt).finish.at(0), FinishReason::kStop);
  EXPECT_EQ(fleet_.CheckFinished(longer), "");
  EXPECT_GE(fleet_.record(longer.attempt).tokens.at(0).size(), 10u);
}

TEST_F(EngineLocalTest, WhatDoesNotFitTheContextWholeIsRefused) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(500, 3), 12);
  const Submit longer = MakeSubmit(2, RandomTokens(500, 3), 13);
  fleet_.Submit(0, submit);
  fleet_.Submit(0, longer);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_THAT(fleet_.record(submit.attempt).tokens.at(0), SizeIs(12));
  ASSERT_THAT(fleet_.record(longer.attempt).refused, SizeIs(1));
  EXPECT_EQ(fleet_.record(longer.attempt).refused[0].message(),
            "513 tokens need 33 blocks of 16, this worker has a context of 512 and 64 blocks");
}

TEST_F(EngineLocalTest, ResumedAttemptGoesOnAsIfNothingHadHappened) {
  Create();
  Submit submit = MakeSubmit(1, RandomTokens(40, 3), 30);
  submit.spec.sampling.min_tokens = 20;
  submit.spec.sampling.num_logprobs = 2;
  submit.spec.sampling.num_prompt_logprobs = 1;
  for (int32_t delivered : {1, 7, 29}) {
    SCOPED_TRACE(delivered);
    Submit resumed = submit;
    resumed.attempt.attempt = static_cast<uint32_t>(delivered);
    const RequestSpec& spec = submit.spec;
    const auto tokens = SimulatedModel().Generate(spec.token_ids, 0, spec.sampling);
    for (size_t i = 0; i < static_cast<size_t>(delivered); ++i)
      resumed.spec.token_ids.push_back(tokens[i].token);
    fleet_.Submit(0, resumed);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(resumed), "");
    EXPECT_EQ(fleet_.record(resumed.attempt).tokens.at(0).size(),
              tokens.size() - static_cast<size_t>(delivered));
  }
}

TEST_F(EngineLocalTest, TokensOfEarlierAttemptsCountTowardsMinTokens) {
  Create();
  Submit submit = MakeSubmit(1, RandomTokens(20, 3), 50);
  const auto tokens = SimulatedModel().Generate(submit.spec.token_ids, 0, submit.spec.sampling);
  submit.spec.sampling.min_tokens = 8;
  submit.spec.sampling.stop_token_ids = {tokens[12].token};
  for (const size_t delivered : {10, 12}) {  // It stops later, and with its first token.
    Submit resumed = submit;
    resumed.attempt.attempt = static_cast<uint32_t>(delivered);
    for (size_t i = 0; i < delivered; ++i) resumed.spec.token_ids.push_back(tokens[i].token);
    fleet_.Submit(0, resumed);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(resumed), "");
    EXPECT_THAT(fleet_.record(resumed.attempt).tokens.at(0), SizeIs(13 - delivered));
    EXPECT_EQ(fleet_.record(resumed.attempt).finish.at(0), FinishReason::kStop);
  }
}

TEST_F(EngineLocalTest, APreemptedPromptFindsItsOwnBlocksAndDoesNotCallThatAHit) {
  const Submit prompt = MakeSubmit(2, RandomTokens(100, 2), 3);
  RunPreempted(prompt);
  EXPECT_LT(computed(), 20 + 29 + 2 * 100 + 2) << "it found nothing: the case is too easy";
  EXPECT_EQ(fleet_.record(prompt.attempt).prompts[0].cached_tokens, 0);
}

TEST_F(EngineLocalTest, WhatAFailedRunWasToComputeIsNotCached) {
  Create(SmallEngine(), /*failing_token=*/5'000);
  Submit submit = MakeSubmit(1, RandomTokens(100, 3), 10);
  submit.spec.token_ids[70] = 5'000;  // In the second of two chunks.
  fleet_.Submit(0, submit);
  Run();
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_THAT(fleet_.engine(0).CachedBlocks(), SizeIs(4));
}

// Eight choices of one prompt will need a block each for what follows it.
TEST_F(EngineLocalTest, WhoeverIsAdmittedBesideForksToComeIsNotPreemptedForThem) {
  EngineOptions options = SmallEngine(/*num_blocks=*/22);
  options.max_sequences = 2;
  options.max_batched_tokens = 9;
  Create(options);
  const Submit older = MakeSubmit(1, RandomTokens(10, 1), 100);
  const Submit many = MakeSubmit(2, RandomTokens(96, 2), 10, /*num_choices=*/8);
  const Submit newcomer = MakeSubmit(3, RandomTokens(20, 3), 60);
  fleet_.Submit(0, older);
  RunUntilFirstToken(older);
  fleet_.Submit(0, many);
  while (fleet_.engine(0).Load().running_sequences < 2) ASSERT_TRUE(fleet_.RunOne());
  fleet_.Submit(0, newcomer);  // While the prompt of the many is computed.
  Run();
  for (const Submit& submit : {older, many, newcomer}) EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(), 10 + 99 + 96 + 8 * 9 + 20 + 59) << "somebody was preempted";
}

// What each of them may come to need is its own.
TEST_F(EngineLocalTest, ForksThatRunKeepNobodyOutWhoFitsBesideThem) {
  EngineOptions options = SmallEngine(/*num_blocks=*/60);
  options.max_sequences = 2;
  options.max_batched_tokens = 9;
  Create(options);
  const Submit older = MakeSubmit(1, RandomTokens(10, 1), 300);
  const Submit many = MakeSubmit(2, RandomTokens(96, 2), 10, /*num_choices=*/8);
  const Submit newcomer = MakeSubmit(3, RandomTokens(20, 3), 5);
  fleet_.Submit(0, older);
  RunUntilFirstToken(older);
  fleet_.Submit(0, many);
  RunUntilFirstToken(many);
  fleet_.Submit(0, newcomer);
  RunUntilFirstToken(newcomer);
  EXPECT_THAT(fleet_.record(many.attempt).finish, IsEmpty());
  Run();
  for (const Submit& submit : {older, many, newcomer}) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineLocalTest, ARequestAloneSharesNoBatchUntilItsFirstToken) {
  Create();
  Submit alone = MakeSubmit(1, RandomTokens(40, 3), 10);
  alone.spec.runs_alone = true;
  const Submit other = MakeSubmit(2, RandomTokens(40, 4), 10);
  fleet_.Submit(0, alone);
  fleet_.Submit(0, other);
  RunUntilFirstToken(alone);
  EXPECT_EQ(fleet_.executor(0).largest_batch(), 1);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(alone), "");
  EXPECT_EQ(fleet_.CheckFinished(other), "");
  EXPECT_EQ(fleet_.executor(0).largest_batch(), 2) << "nobody waits for it any longer";
}

TEST_F(EngineLocalTest, OnePromptAloneAtATime) {
  Create();
  Submit first = MakeSubmit(1, RandomTokens(40, 3), 10);
  Submit second = MakeSubmit(2, RandomTokens(40, 4), 10);
  first.spec.runs_alone = second.spec.runs_alone = true;
  fleet_.Submit(0, first);
  fleet_.Submit(0, second);
  RunUntilFirstToken(first);
  ASSERT_THAT(fleet_.record(second.attempt).refused, SizeIs(1));
  EXPECT_EQ(fleet_.record(second.attempt).refused[0].code(), absl::StatusCode::kAborted)
      << "the worker is not full";
  Submit third = MakeSubmit(3, RandomTokens(40, 5), 10);
  third.spec.runs_alone = true;
  fleet_.Submit(0, third);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(first), "");
  EXPECT_EQ(fleet_.CheckFinished(third), "");
}

TEST_F(EngineLocalTest, SubmitIsIdempotentWhileRunningAndAfterwards) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(40, 3), 10);
  fleet_.Submit(0, submit);
  fleet_.Submit(0, submit);
  RunUntilFirstToken(submit);
  fleet_.Submit(0, submit);
  Run();
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineLocalTest, RefusesWhatItCannotServeAndSaysWhy) {
  EngineOptions options = SmallEngine(/*num_blocks=*/8);
  options.max_waiting_attempts = 2;
  Create(options);
  const auto refusal = [&](const Submit& submit) {
    fleet_.Submit(0, submit);
    const auto& refused = fleet_.record(submit.attempt).refused;
    return refused.size() == 1 ? refused[0].code() : absl::StatusCode::kOk;
  };
  EXPECT_EQ(refusal(MakeSubmit(1, {}, 5)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(MakeSubmit(2, RandomTokens(512, 1), 5)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(MakeSubmit(3, RandomTokens(100, 1), 50)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(MakeSubmit(4, RandomTokens(10, 1), 0)), absl::StatusCode::kInvalidArgument);
  Submit wrong_choices = MakeSubmit(5, RandomTokens(10, 1), 5);
  for (const auto& choices : std::vector<std::vector<int32_t>>{{}, {1, 1}, {1, 0}}) {
    ++wrong_choices.attempt.attempt;
    wrong_choices.spec.choices = choices;
    EXPECT_EQ(refusal(wrong_choices), absl::StatusCode::kInvalidArgument);
  }
  Submit prompt_too_long = MakeSubmit(7, RandomTokens(10, 1), 5);
  prompt_too_long.spec.prompt_tokens = 11;
  EXPECT_EQ(refusal(prompt_too_long), absl::StatusCode::kInvalidArgument);

  for (uint64_t i = 10; i < 12; ++i)
    EXPECT_EQ(refusal(MakeSubmit(i, RandomTokens(10, i), 5)), absl::StatusCode::kOk);
  EXPECT_EQ(refusal(MakeSubmit(12, RandomTokens(10, 1), 5)), absl::StatusCode::kResourceExhausted);
  Run();
}

TEST_F(EngineLocalTest, CancelFreesAtOnceWhateverTheAttemptDoes) {
  Create(SmallEngine(/*num_blocks=*/40));
  for (int events = 0; events < 40; ++events) {
    SCOPED_TRACE(events);
    const auto counter = static_cast<uint64_t>(events) * 2 + 1;
    const Submit submit = MakeSubmit(counter, RandomTokens(200, counter), 20, 3);
    const Submit other = MakeSubmit(counter + 1, RandomTokens(50, counter + 1), 20);
    fleet_.Submit(0, submit);
    fleet_.Submit(0, other);
    for (int i = 0; i < events; ++i) fleet_.RunOne();
    const bool finished = fleet_.record(submit.attempt).finish.size() == 3;
    fleet_.Cancel(0, submit.attempt);
    fleet_.Cancel(0, submit.attempt);
    EXPECT_EQ(fleet_.Audit(), "");
    Run();
    EXPECT_EQ(fleet_.CheckFinished(other), "");
    const AttemptRecord& record = fleet_.record(submit.attempt);
    EXPECT_FALSE(record.token_after_end);
    if (finished) {
      EXPECT_THAT(record.ended, IsEmpty());
      EXPECT_THAT(record.aborts, ElementsAre(AbortOutcome::kNotFound, AbortOutcome::kNotFound));
    } else {
      ASSERT_THAT(record.ended, SizeIs(1));
      EXPECT_TRUE(absl::IsCancelled(record.ended[0]));
      EXPECT_THAT(record.aborts, ElementsAre(AbortOutcome::kAccepted, AbortOutcome::kNotFound));
    }
    ASSERT_EQ(fleet_.AuditQuiet(), "");
  }
}

TEST_F(EngineLocalTest, SubmitForAnotherModelIsLeftToOtherWorkers) {
  EngineOptions options = SmallEngine();
  options.model = "ours";
  Create(options);
  Submit submit = MakeSubmit(1, RandomTokens(40, 3), 10);
  submit.model = "theirs";
  fleet_.Submit(0, submit);
  Submit ours = MakeSubmit(2, RandomTokens(40, 3), 10);
  ours.model = "ours";
  fleet_.Submit(0, ours);
  Run();
  ASSERT_THAT(fleet_.record(submit.attempt).refused, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(submit.attempt).refused[0]));
  EXPECT_EQ(fleet_.CheckFinished(ours), "");
}

TEST_F(EngineLocalTest, CancelThatOvertakesItsSubmitLeavesATombstone) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(40, 3), 10);
  fleet_.Cancel(0, submit.attempt);
  fleet_.Cancel(0, submit.attempt);
  fleet_.Submit(0, submit);
  fleet_.Submit(0, submit);
  Run();
  const AttemptRecord& record = fleet_.record(submit.attempt);
  EXPECT_EQ(record.aborts[0], AbortOutcome::kTombstoned);
  EXPECT_EQ(record.aborts[1], AbortOutcome::kTombstoned);
  ASSERT_THAT(record.refused, SizeIs(1));
  EXPECT_TRUE(absl::IsCancelled(record.refused[0]));
  EXPECT_EQ(computed(), 0);

  const Submit late = MakeSubmit(2, RandomTokens(40, 3), 10);
  fleet_.Cancel(0, late.attempt, /*time_left_us=*/0);
  EXPECT_THAT(fleet_.record(late.attempt).aborts, ElementsAre(AbortOutcome::kNotFound));
}

TEST_F(EngineLocalTest, DeadlineEndsAnAttemptAndIsTheNextWakeup) {
  Create();
  Submit submit = MakeSubmit(1, RandomTokens(40, 3), 400);
  submit.spec.time_left_us = 5'000;
  const int64_t submitted_us = fleet_.now_us();
  fleet_.Submit(0, submit);
  RunUntilFirstToken(submit);
  const auto result = fleet_.engine(0).Step(fleet_.now_us());
  EXPECT_EQ(result.next_wakeup_us, submitted_us + 5'000);
  fleet_.Advance(5'000);
  Run();
  const AttemptRecord& record = fleet_.record(submit.attempt);
  ASSERT_THAT(record.ended, SizeIs(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(record.ended[0]));

  Submit late = MakeSubmit(2, RandomTokens(40, 3), 4);
  late.spec.time_left_us = 0;
  fleet_.Submit(0, late);
  ASSERT_THAT(fleet_.record(late.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(fleet_.record(late.attempt).ended[0]));
}

TEST_F(EngineLocalTest, LostRouterTakesItsAttemptsAlong) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(40, 3), 100, 2);
  fleet_.Submit(0, submit);
  RunUntilFirstToken(submit);
  fleet_.engine(0).OnRouterLost(EngineFleet::kRouter + 1, fleet_.now_us());
  EXPECT_EQ(fleet_.engine(0).Load().running_sequences, 2);
  fleet_.engine(0).OnRouterLost(EngineFleet::kRouter, fleet_.now_us());
  EXPECT_EQ(fleet_.AuditQuiet(), "");
  EXPECT_THAT(fleet_.record(submit.attempt).ended, IsEmpty());
}

TEST_F(EngineLocalTest, FailingRunEndsItsOwnAttemptOnly) {
  Create(SmallEngine(), /*failing_token=*/5'000);
  Submit bad = MakeSubmit(1, RandomTokens(40, 3), 10, 2);
  bad.spec.token_ids[20] = 5'000;
  const Submit good = MakeSubmit(2, RandomTokens(40, 4), 10);
  fleet_.Submit(0, bad);
  fleet_.Submit(0, good);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(good), "");
  ASSERT_THAT(fleet_.record(bad.attempt).ended, SizeIs(1));
  EXPECT_EQ(fleet_.record(bad.attempt).ended[0].code(), absl::StatusCode::kInternal);
}

TEST_F(EngineLocalTest, FailingStepEndsItsSequencesAndNothingOfItIsPublishedOrCached) {
  Create();
  const std::vector<int32_t> prompt = RandomTokens(40, 3);
  const Submit submit = MakeSubmit(1, prompt, 10);
  fleet_.Submit(0, submit);
  fleet_.executor(0).FailNextStep();
  Run();
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_EQ(fleet_.record(submit.attempt).ended[0],
            absl::AbortedError("a step failed: it was told to fail"));
  EXPECT_THAT(fleet_.record(submit.attempt).tokens, IsEmpty());
  EXPECT_EQ(fleet_.engine(0).Load().blocks.cached, 0);
  const Submit again = MakeSubmit(2, prompt, 10);
  fleet_.Submit(0, again);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(again), "");
}

TEST_F(EngineLocalTest, AWorkerWhoseStepsKeepFailingIsToBeReplaced) {
  Create();
  const auto fail = [&](uint64_t counter) {
    fleet_.executor(0).FailNextStep();
    fleet_.Submit(0, MakeSubmit(counter, RandomTokens(40, 3), 10));
    Run();
  };
  for (uint64_t i = 1; i < kMaxFailedSteps; ++i) fail(i);
  fleet_.Submit(0, MakeSubmit(100, RandomTokens(40, 3), 1));
  Run();
  for (uint64_t i = 1; i < kMaxFailedSteps; ++i) fail(200 + i);
  EXPECT_FALSE(fleet_.engine(0).is_broken()) << "one has succeeded in between";
  fail(300);
  EXPECT_TRUE(fleet_.engine(0).is_broken());
  EXPECT_EQ(fleet_.failed_steps(), int64_t{kMaxFailedSteps} - 1 + kMaxFailedSteps);
}

TEST_F(EngineLocalTest, AWorkerWhoseDeviceIsLostIsToBeReplacedAtOnce) {
  Create();
  fleet_.executor(0).FailNextStep(absl::DataLossError("a device's error that stays"));
  fleet_.Submit(0, MakeSubmit(1, RandomTokens(40, 3), 10));
  Run();
  EXPECT_TRUE(fleet_.engine(0).is_broken());
  EXPECT_EQ(fleet_.failed_steps(), 1);
}

TEST_F(EngineLocalTest, DrainEndsWhatRunsAndRefusesWhatComes) {
  Create();
  EXPECT_FALSE(fleet_.engine(0).drained()) << "nobody has asked it to";
  const Submit submit = MakeSubmit(1, RandomTokens(40, 3), 100);
  fleet_.Submit(0, submit);
  RunUntilFirstToken(submit);
  EXPECT_FALSE(fleet_.engine(0).drained());
  fleet_.engine(0).Drain(fleet_.now_us());
  EXPECT_TRUE(fleet_.engine(0).drained());
  const Submit late = MakeSubmit(2, RandomTokens(40, 3), 10);
  fleet_.Submit(0, late);
  Run();
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(submit.attempt).ended[0]));
  ASSERT_THAT(fleet_.record(late.attempt).refused, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(late.attempt).refused[0]));
}

TEST_F(EngineLocalTest, KvEventsFollowTheCacheAndASnapshotSaysTheSame) {
  Create(SmallEngine(/*num_blocks=*/16));
  std::vector<BlockHash> known;
  const auto apply = [&](const KvEvents& events) {
    known.insert(known.end(), events.stored.begin(), events.stored.end());
    for (const BlockHash& hash : events.removed) std::erase(known, hash);
  };
  for (uint64_t i = 1; i <= 6; ++i) {
    fleet_.Submit(0, MakeSubmit(i, RandomTokens(80, i), 4));
    Run();
    apply(fleet_.engine(0).TakeKvEvents());
  }
  std::vector<BlockHash> snapshot = fleet_.engine(0).SnapshotKvEvents().stored;
  EXPECT_THAT(known, testing::UnorderedElementsAreArray(snapshot));
  EXPECT_GT(snapshot.size(), 5u);
}

TEST_F(EngineLocalTest, RandomLoadUnderMemoryPressureStaysExact) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    EngineFleet fleet;
    EngineOptions options = SmallEngine(static_cast<int32_t>(random.Between(12, 40)));
    options.kv.block_tokens = random.Chance(0.5) ? 16 : 32;
    options.max_sequences = static_cast<int32_t>(random.Between(1, 8));
    options.max_batched_tokens = static_cast<int32_t>(random.Between(9, 80));
    options.prefix_caching = random.Chance(0.8);
    fleet.AddWorker({.engine = options, .overlap_steps = seed % 2 == 0});
    std::vector<Submit> submits;
    const auto alone = static_cast<uint64_t>(random.Between(1, 20));
    for (uint64_t i = 1; i <= 15; ++i) {
      const auto length = static_cast<int32_t>(random.Between(1, 120));
      Submit submit = MakeSubmit(i, RandomTokens(length, random.Below(3)),
                                 static_cast<int32_t>(random.Between(1, 60)),
                                 static_cast<int32_t>(random.Between(1, 4)));
      if (random.Chance(0.2)) submit.spec.sampling.num_prompt_logprobs = 1;
      if (random.Chance(0.3)) submit.spec.sampling.temperature = 0;
      submit.spec.runs_alone = i == alone;
      fleet.Submit(0, submit);
      submits.push_back(submit);
      for (uint64_t steps = random.Below(8); steps > 0; --steps) fleet.RunOne();
    }
    ASSERT_TRUE(fleet.RunUntilQuiet());
    for (const Submit& submit : submits) EXPECT_EQ(fleet.CheckFinished(submit), "");
    EXPECT_EQ(fleet.AuditQuiet(), "");
  }
}

}  // namespace
}  // namespace tandem
