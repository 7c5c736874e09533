// One engine whose device computes late: what comes between a step's beginning and its end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/engine_cases.h"
#include "tests/support/engine_fleet.h"

namespace tandem {
namespace {

using testing::SizeIs;

class EngineOverlapTest : public testing::Test {
 protected:
  void TearDown() override {
    if (fleet_.num_workers() > 0) {
      EXPECT_EQ(fleet_.AuditQuiet(), "");
    }
  }
  void Create(const EngineOptions& options = SmallEngine(), int32_t failing_token = -1) {
    fleet_.AddWorker({.engine = options, .failing_token = failing_token, .overlap_steps = true});
  }
  Engine& engine() { return fleet_.engine(0); }
  int32_t Begin() { return fleet_.BeginStep(0).sequences; }  // In its batch.
  void Finish() { fleet_.FinishStep(0); }
  void Run() { ASSERT_TRUE(fleet_.RunUntilQuiet()); }
  // All have their first token, and no step runs.
  void Decode(const std::vector<Submit>& submits) {
    for (const Submit& submit : submits) fleet_.Submit(0, submit);
    for (const Submit& submit : submits) {
      while (fleet_.record(submit.attempt).tokens.empty()) ASSERT_TRUE(fleet_.RunOne());
    }
    while (engine().steps_begun() > 0) Finish();
  }
  size_t NumTokens(const Submit& submit) {
    return fleet_.record(submit.attempt).tokens.at(0).size();
  }
  int64_t held() { return engine().Load().blocks.held; }
  int64_t computed() { return fleet_.executor(0).computed_tokens(); }

  EngineFleet fleet_;
};

TEST_F(EngineOverlapTest, AStepBeginsBeforeTheTokensOfTheLastAreSeen) {
  Create();
  const std::vector<Submit> submits = {MakeSubmit(1, RandomTokens(20, 1), 30),
                                       MakeSubmit(2, RandomTokens(27, 2), 30)};
  Decode(submits);
  EXPECT_EQ(Begin(), 2);
  EXPECT_EQ(Begin(), 2);
  EXPECT_FALSE(engine().may_begin_step()) << "two are begun";
  EXPECT_EQ(NumTokens(submits[0]), 1u);
  Finish();
  EXPECT_EQ(NumTokens(submits[0]), 2u);
  EXPECT_EQ(Begin(), 2);
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(), 20 + 27 + 2 * 29);
}

TEST_F(EngineOverlapTest, WhatItsLengthEndsIsNotBegunAnyMore) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 3);
  Decode({submit});
  EXPECT_EQ(Begin(), 1);
  EXPECT_EQ(Begin(), 1);
  Finish();
  EXPECT_EQ(Begin(), 0) << "its last token is being drawn";
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(), 20 + 2);
}

TEST_F(EngineOverlapTest, NorWhileNoOtherStepWasBegun) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 2);
  Decode({submit});
  EXPECT_EQ(Begin(), 1);
  EXPECT_EQ(Begin(), 0) << "its last token is being drawn";
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(), 20 + 1);
}

TEST_F(EngineOverlapTest, AStopDropsTheRunThatWasBegunAfterIt) {
  Create();
  Submit stopped = MakeSubmit(1, RandomTokens(20, 1), 30);
  const Submit other = MakeSubmit(2, RandomTokens(27, 2), 30);
  const std::vector<SampledToken> tokens =
      SimulatedModel().Generate(stopped.spec.token_ids, 0, stopped.spec.sampling);
  stopped.spec.sampling.stop_token_ids = {tokens[2].token};
  Decode({stopped, other});
  EXPECT_EQ(Begin(), 2);
  EXPECT_EQ(Begin(), 2);
  Finish();
  EXPECT_EQ(Begin(), 2) << "with a token that nobody will want";
  const int64_t before = held();
  Finish();
  EXPECT_EQ(fleet_.CheckFinished(stopped), "");
  EXPECT_EQ(held(), before) << "its run is still to come";
  Finish();
  EXPECT_LT(held(), before);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(stopped), "");
  EXPECT_EQ(fleet_.CheckFinished(other), "");
}

TEST_F(EngineOverlapTest, AChoiceThatStopsHasNoTokenMoreWhileAnotherGoesOn) {
  Create();
  Submit submit = MakeSubmit(1, RandomTokens(20, 1), 30, /*num_choices=*/2);
  const std::vector<SampledToken> tokens =
      SimulatedModel().Generate(submit.spec.token_ids, 0, submit.spec.sampling);
  submit.spec.sampling.stop_token_ids = {tokens[2].token};
  Decode({submit});
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(NumTokens(submit), 3u);
}

// However it ends: what a begun step names is nobody's before that is over, and what the step gives
// is nobody's at all.
struct Ending {
  std::string name;
  std::function<void(EngineFleet*, const Submit&)> end;
};

class EngineOverlapEndingTest : public EngineOverlapTest,
                                public testing::WithParamInterface<Ending> {};

TEST_P(EngineOverlapEndingTest, BlocksAreFreeAfterTheLastStepThatNamesThem) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 30, /*num_choices=*/2);
  Decode({submit});
  ASSERT_EQ(Begin(), 2);
  ASSERT_EQ(Begin(), 2);
  const int64_t before = held();
  GetParam().end(&fleet_, submit);
  EXPECT_EQ(held(), before);
  Finish();
  EXPECT_EQ(Begin(), 0);
  EXPECT_EQ(held(), before) << "the second one names them, too";
  EXPECT_FALSE(engine().drained());
  Finish();
  EXPECT_EQ(held(), 0);
  EXPECT_LE(NumTokens(submit), 2u);
  EXPECT_FALSE(fleet_.record(submit.attempt).token_after_end);
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineOverlapEndingTest,
    testing::Values(
        Ending{"Cancelled",
               [](EngineFleet* fleet, const Submit& submit) { fleet->Cancel(0, submit.attempt); }},
        Ending{"RouterLost",
               [](EngineFleet* fleet, const Submit&) {
                 fleet->engine(0).OnRouterLost(EngineFleet::kRouter, fleet->now_us());
               }},
        // The next step's beginning notices this one.
        Ending{"Deadline", [](EngineFleet* fleet, const Submit&) { fleet->Advance(61'000'000); }},
        Ending{"Drained",
               [](EngineFleet* fleet, const Submit&) { fleet->engine(0).Drain(fleet->now_us()); }}),
    [](const auto& ending) { return ending.param.name; });

TEST_F(EngineOverlapTest, AWorkerThatDrainsIsNotDrainedWhileAStepRuns) {
  Create();
  Decode({MakeSubmit(1, RandomTokens(20, 1), 30)});
  ASSERT_EQ(Begin(), 1);
  engine().Drain(fleet_.now_us());
  EXPECT_FALSE(engine().drained());
  Finish();
  EXPECT_TRUE(engine().drained());
}

TEST_F(EngineOverlapTest, AnIdleWorkerWithAStepHasWork) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 30);
  Decode({submit});
  ASSERT_EQ(Begin(), 1);
  fleet_.Cancel(0, submit.attempt);
  EXPECT_TRUE(engine().Load().has_work);
  Finish();
  EXPECT_FALSE(engine().Load().has_work);
}

TEST_F(EngineOverlapTest, NobodyIsPreemptedWhileAStepRuns) {
  Create(SmallEngine(/*num_blocks=*/5));
  const std::vector<Submit> submits = {MakeSubmit(1, RandomTokens(30, 1), 20),
                                       MakeSubmit(2, RandomTokens(30, 2), 20)};
  Decode(submits);
  ASSERT_EQ(Begin(), 2);
  ASSERT_EQ(Begin(), 2);
  Finish();
  EXPECT_EQ(Begin(), 1) << "the other lacks a block";
  EXPECT_EQ(fleet_.preemptions(), 0);
  EXPECT_FALSE(engine().may_begin_step());
  Finish();
  EXPECT_FALSE(engine().may_begin_step()) << "the steps run out";
  Finish();
  ASSERT_TRUE(engine().may_begin_step());
  EXPECT_EQ(Begin(), 1);
  EXPECT_EQ(fleet_.preemptions(), 1);
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineOverlapTest, NorForTheFirstStepThatBeginsBesideAnother) {
  Create(SmallEngine(/*num_blocks=*/5));
  const std::vector<Submit> submits = {MakeSubmit(1, RandomTokens(31, 1), 20),
                                       MakeSubmit(2, RandomTokens(31, 2), 20)};
  Decode(submits);
  ASSERT_EQ(Begin(), 2);
  EXPECT_EQ(Begin(), 1) << "the other lacks a block";
  EXPECT_EQ(fleet_.preemptions(), 0);
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineOverlapTest, WhoLacksABlockGetsOneThatComesBackAndNobodyIsPreempted) {
  Create(SmallEngine(/*num_blocks=*/8));
  const Submit cancelled = MakeSubmit(1, RandomTokens(30, 1), 20);
  const Submit other = MakeSubmit(2, RandomTokens(30, 2), 20),
               last = MakeSubmit(3, RandomTokens(30, 3), 20);
  Decode({cancelled, other, last});
  ASSERT_EQ(Begin(), 3);
  ASSERT_EQ(Begin(), 3);
  Finish();
  EXPECT_EQ(Begin(), 2) << "the youngest lacks a block";
  fleet_.Cancel(0, cancelled.attempt);
  Finish();
  Finish();
  EXPECT_EQ(Begin(), 2);
  EXPECT_EQ(fleet_.preemptions(), 0);
  Run();
  EXPECT_EQ(fleet_.preemptions(), 0);
  EXPECT_EQ(fleet_.CheckFinished(other), "");
  EXPECT_EQ(fleet_.CheckFinished(last), "");
}

TEST_F(EngineOverlapTest, ChoicesCopyTheTailOfTheirPromptAndTheLastOfThemKeepsIt) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 30, /*num_choices=*/3);
  Decode({submit});
  ASSERT_EQ(Begin(), 3);
  ASSERT_EQ(Begin(), 3);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.executor(0).copied_blocks(), 2);
}

TEST_F(EngineOverlapTest, WhatIsCopiedIsNobodysBeforeTheStepIsOver) {
  EngineOptions options = SmallEngine();
  options.max_sequences = 1;
  Create(options);
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 30, /*num_choices=*/2);
  Decode({submit});
  ASSERT_EQ(Begin(), 1);
  ASSERT_EQ(held(), 3);
  fleet_.Cancel(0, submit.attempt);  // The other choice, whose tail it is, is in no step.
  EXPECT_EQ(held(), 3);
  Finish();
  EXPECT_EQ(held(), 0);
}

TEST_F(EngineOverlapTest, WhatFailsBehindAFailureIsTheSameOne) {
  Create();
  for (uint64_t i = 1; i <= kMaxFailedSteps; ++i) {
    EXPECT_FALSE(engine().is_broken()) << i;
    const Submit submit = MakeSubmit(2 * i, RandomTokens(20, i), 30);
    const Submit other = MakeSubmit(2 * i + 1, RandomTokens(300, i), 30);
    fleet_.Submit(0, submit);
    ASSERT_EQ(Begin(), 1);
    fleet_.Submit(0, other);
    ASSERT_EQ(Begin(), 1);
    for (int step = 0; step < 2; ++step) {
      fleet_.executor(0).FailNextStep();
      EXPECT_TRUE(fleet_.FinishStep(0).failed());
    }
  }
  EXPECT_TRUE(engine().is_broken());
}

TEST_F(EngineOverlapTest, AFailedStepEndsItsSequencesAndOnlyTheirRunsOfTheNext) {
  Create();
  const std::vector<Submit> failed = {MakeSubmit(1, RandomTokens(20, 1), 30),
                                      MakeSubmit(2, RandomTokens(27, 2), 30)};
  const Submit newcomer = MakeSubmit(3, RandomTokens(27, 3), 30);
  Decode(failed);
  fleet_.executor(0).FailNextStep();
  ASSERT_EQ(Begin(), 2);
  fleet_.Submit(0, newcomer);
  ASSERT_EQ(Begin(), 3);
  EXPECT_EQ(engine().step_tokens(), 2) << "of the one that is awaited";
  const Engine::StepResult first = fleet_.FinishStep(0);
  EXPECT_TRUE(first.failed());
  EXPECT_EQ(first.finished_sequences, 2);
  EXPECT_EQ(engine().step_tokens(), 2 + 27);
  const Engine::StepResult second = fleet_.FinishStep(0);
  EXPECT_FALSE(second.failed());
  EXPECT_EQ(second.finished_sequences, 3);
  for (const Submit& submit : failed) {
    EXPECT_THAT(fleet_.record(submit.attempt).ended,
                testing::ElementsAre(absl::AbortedError("a step failed: it was told to fail")));
    EXPECT_EQ(NumTokens(submit), 1u);
  }
  EXPECT_EQ(NumTokens(newcomer), 1u);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(newcomer), "");
  // Nothing of it is cached, nor of what stood upon it.
  for (const Submit& submit : failed) {
    const Submit again = MakeSubmit(submit.attempt.request.counter + 10, submit.spec.token_ids, 30);
    fleet_.Submit(0, again);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(again), "");
  }
}

TEST_F(EngineOverlapTest, WhatAFailedStepWasComputingHasNoName) {
  Create();
  for (int32_t length = 20; length < 36; ++length) {  // At one of them that fills a block.
    const auto seed = static_cast<uint64_t>(length);
    const Submit submit = MakeSubmit(seed, RandomTokens(length, seed), 30);
    Decode({submit});
    ASSERT_EQ(Begin(), 1);
    ASSERT_EQ(Begin(), 1);
    Finish();
    fleet_.executor(0).FailNextStep();
    EXPECT_TRUE(fleet_.FinishStep(0).failed());
    std::vector<int32_t> known = submit.spec.token_ids;
    for (const SampledToken& t : fleet_.record(submit.attempt).tokens.at(0)) {
      known.push_back(t.token);
    }
    known.push_back(7);
    const Submit again = MakeSubmit(seed + 100, known, 10);
    fleet_.Submit(0, again);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(again), "") << length;
  }
}

TEST_F(EngineOverlapTest, ARunThatFailsEndsItsAttemptAndTheRunThatWasBegunAfterIt) {
  Submit bad = MakeSubmit(1, RandomTokens(20, 1), 30);
  const Submit good = MakeSubmit(2, RandomTokens(27, 2), 30);
  const std::vector<SampledToken> tokens =
      SimulatedModel().Generate(bad.spec.token_ids, 0, bad.spec.sampling);
  Create(SmallEngine(), /*failing_token=*/tokens[0].token);
  Decode({bad, good});
  ASSERT_EQ(Begin(), 2);
  ASSERT_EQ(Begin(), 2);
  Finish();
  EXPECT_THAT(fleet_.record(bad.attempt).ended, SizeIs(1));
  Finish();
  EXPECT_EQ(NumTokens(bad), 1u);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(good), "");
}

TEST_F(EngineOverlapTest, ChunksOfAPromptFollowEachOtherAndOthersDoNotWait) {
  Create();
  const Submit decoding = MakeSubmit(1, RandomTokens(20, 1), 30);
  const Submit prompt = MakeSubmit(2, RandomTokens(150, 2), 30);
  Decode({decoding});
  fleet_.Submit(0, prompt);
  EXPECT_EQ(Begin(), 2);
  EXPECT_EQ(Begin(), 1) << "what routers are told of begins when what they were told of is over";
  Finish();
  EXPECT_EQ(Begin(), 2);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(decoding), "");
  EXPECT_EQ(fleet_.CheckFinished(prompt), "");
}

TEST_F(EngineOverlapTest, WhatRunsAloneRunsWithoutAnyStepBesideIt) {
  Create();
  Submit alone = MakeSubmit(1, RandomTokens(40, 1), 30);
  alone.spec.runs_alone = true;
  const Submit other = MakeSubmit(2, RandomTokens(40, 2), 30);
  fleet_.Submit(0, other);
  fleet_.Submit(0, alone);
  EXPECT_EQ(Begin(), 1);
  EXPECT_FALSE(engine().may_begin_step());
  Run();
  EXPECT_EQ(fleet_.CheckFinished(alone), "");
  EXPECT_EQ(fleet_.CheckFinished(other), "");
}

TEST_F(EngineOverlapTest, APeerThatIsLostLeavesItsPromptsBlocksUntilTheChunkIsOver) {
  Create();
  Create();
  Submit submit = MakeSubmit(1, RandomTokens(150, 1), 30);
  submit.prefill = fleet_.peer(1);
  submit.disaggregate_from_tokens = 1;
  fleet_.Submit(0, submit);
  fleet_.RunUntil([&] { return fleet_.engine(1).steps_begun() > 0; });
  const auto blocks = [&] { return fleet_.engine(1).Load().blocks; };
  ASSERT_EQ(blocks().held, 10);
  fleet_.BreakSession(/*decode=*/0, /*prefill=*/1);
  EXPECT_EQ(blocks().held, 10);
  fleet_.FinishStep(1);
  EXPECT_EQ(blocks().held + blocks().in_flight + blocks().quarantined, 0);
  Run();
}

TEST_F(EngineOverlapTest, WhatIsGeneratedIsCachedAsItIsSeen) {
  Create();
  const Submit first = MakeSubmit(1, RandomTokens(30, 1), 40);
  fleet_.Submit(0, first);
  Run();
  std::vector<int32_t> conversation = first.spec.token_ids;
  for (const SampledToken& t : fleet_.record(first.attempt).tokens.at(0)) {
    conversation.push_back(t.token);
  }
  const Submit next = MakeSubmit(2, conversation, 4);
  fleet_.Submit(0, next);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(next), "");
  EXPECT_EQ(fleet_.record(next.attempt).prompts[0].cached_tokens, 64);
}

}  // namespace
}  // namespace tandem
