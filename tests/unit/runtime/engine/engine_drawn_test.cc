// Runs that draw several tokens, or none: the tokens are those of one a step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine_cases.h"
#include "tests/support/engine_fleet.h"

namespace tandem {
namespace {

using testing::SizeIs;

constexpr int32_t kMaxDrawn = 20;  // More than a block.

std::vector<SampledToken> TokensOf(const Submit& submit) {
  return SimulatedModel().Generate(submit.spec.token_ids, 0, submit.spec.sampling);
}

class DrawnTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fleet_.AuditQuiet(), ""); }
  void Create(bool overlap, const EngineOptions& options = SmallEngine(),
              int32_t failing_token = -1) {
    fleet_.AddWorker({.engine = options,
                      .failing_token = failing_token,
                      .max_drawn = kMaxDrawn,
                      .overlap_steps = overlap});
  }
  void DrawEach(int32_t num_tokens) { fleet_.executor(0).DrawEach(num_tokens); }
  Engine& engine() { return fleet_.engine(0); }
  int32_t Begin() { return fleet_.BeginStep(0).sequences; }  // In its batch.
  void Finish() { fleet_.FinishStep(0); }
  void Run() { ASSERT_TRUE(fleet_.RunUntilQuiet()); }
  // It has its first token, and no step runs.
  void Decode(const Submit& submit) {
    fleet_.Submit(0, submit);
    DrawEach(1);
    while (fleet_.record(submit.attempt).tokens.empty()) ASSERT_TRUE(fleet_.RunOne());
    while (engine().steps_begun() > 0) Finish();
  }
  size_t NumTokens(const Submit& submit) {
    return fleet_.record(submit.attempt).tokens.at(0).size();
  }
  int64_t held() { return engine().Load().blocks.held; }

  EngineFleet fleet_;
};

// With steps that overlap, and without.
class EngineDrawnTest : public DrawnTest, public testing::WithParamInterface<bool> {
 protected:
  void Create(const EngineOptions& options = SmallEngine(), int32_t failing_token = -1) {
    DrawnTest::Create(GetParam(), options, failing_token);
  }
};

TEST_P(EngineDrawnTest, AStepGivesSeveralTokensOfASequence) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 100);
  Decode(submit);
  const size_t before = NumTokens(submit);
  DrawEach(7);
  Begin();
  Finish();
  EXPECT_EQ(NumTokens(submit), before + 7);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_P(EngineDrawnTest, AStopEndsASequenceInTheMiddleOfAStep) {
  Create();
  Submit submit = MakeSubmit(1, RandomTokens(20, 1), 100);
  submit.spec.sampling.stop_token_ids = {TokensOf(submit)[30].token};
  const Submit other = MakeSubmit(2, RandomTokens(20, 2), 100);
  fleet_.Submit(0, submit);
  fleet_.Submit(0, other);
  DrawEach(kMaxDrawn);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(NumTokens(submit), 31u);
  EXPECT_EQ(fleet_.CheckFinished(other), "");
}

TEST_P(EngineDrawnTest, AStopCountsFromMinTokensOn) {
  Create();
  Submit submit = MakeSubmit(1, RandomTokens(20, 1), 60);
  submit.spec.sampling.stop_token_ids = {TokensOf(submit)[8].token, TokensOf(submit)[30].token};
  submit.spec.sampling.min_tokens = 20;
  fleet_.Submit(0, submit);
  DrawEach(kMaxDrawn);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_GE(NumTokens(submit), 20u);
}

TEST_P(EngineDrawnTest, ItsLengthEndsASequenceInTheMiddleOfAStep) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 24);
  fleet_.Submit(0, submit);
  DrawEach(kMaxDrawn);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.executor(0).computed_tokens(), 20 + 23) << "but for its last";
}

TEST_P(EngineDrawnTest, WhereNoneIsDrawnTheLastIsComputedAgain) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 30);
  Decode(submit);
  const size_t before = NumTokens(submit);
  DrawEach(0);
  Begin();
  Finish();
  EXPECT_EQ(NumTokens(submit), before);
  DrawEach(1);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_P(EngineDrawnTest, OnlyWhatIsAcceptedIsCached) {
  EngineOptions options = SmallEngine();
  options.max_sequences = 1;
  Create(options);
  // Behind what a step accepts, up to 18 tokens of garbage lie in blocks of it.
  const Submit first = MakeSubmit(1, RandomTokens(30, 1), 200);
  Decode(first);
  DrawEach(2);
  while (NumTokens(first) < 50) ASSERT_TRUE(fleet_.RunOne());
  fleet_.Cancel(0, first.attempt);
  Run();
  std::vector<int32_t> conversation = first.spec.token_ids;
  for (const SampledToken& t : fleet_.record(first.attempt).tokens.at(0)) {
    conversation.push_back(t.token);
  }
  const auto cached = static_cast<int32_t>((conversation.size() - 1) / 16 * 16);
  const Submit next = MakeSubmit(2, conversation, 30);
  fleet_.Submit(0, next);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(next), "");
  EXPECT_EQ(fleet_.record(next.attempt).prompts[0].cached_tokens, cached);
}

TEST_P(EngineDrawnTest, AStepsTokensUpToAStopAreCached) {
  Create();
  Submit first = MakeSubmit(1, RandomTokens(30, 1), 100);
  first.spec.sampling.stop_token_ids = {TokensOf(first)[40].token};
  fleet_.Submit(0, first);
  DrawEach(kMaxDrawn);
  Run();
  std::vector<int32_t> conversation = first.spec.token_ids;
  for (const SampledToken& t : fleet_.record(first.attempt).tokens.at(0)) {
    conversation.push_back(t.token);
  }
  ASSERT_THAT(conversation, SizeIs(71));
  const Submit next = MakeSubmit(2, conversation, 4);
  fleet_.Submit(0, next);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(next), "");
  EXPECT_EQ(fleet_.record(next.attempt).prompts[0].cached_tokens, 64);
}

TEST_P(EngineDrawnTest, APoolThatIsTooSmallPreemptsAndLosesNothing) {
  Create(SmallEngine(/*num_blocks=*/9));
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 4; ++i) submits.push_back(MakeSubmit(i, RandomTokens(30, i), 70));
  for (const Submit& submit : submits) fleet_.Submit(0, submit);
  Run();
  EXPECT_GT(fleet_.preemptions(), 0);
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

// Exactly what both need is there.
TEST_P(EngineDrawnTest, WhoLacksABlockTakesWhatOthersHaveForGuesses) {
  Create(SmallEngine(/*num_blocks=*/10));
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 2; ++i) submits.push_back(MakeSubmit(i, RandomTokens(20, i), 61));
  for (const Submit& submit : submits) fleet_.Submit(0, submit);
  DrawEach(1);
  Run();
  EXPECT_EQ(fleet_.preemptions(), 0);
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.executor(0).computed_tokens(), 2 * (20 + 60));
}

TEST_P(EngineDrawnTest, ChoicesGuessEachForItself) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 80, /*num_choices=*/3);
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_P(EngineDrawnTest, APromptThatTravelledGoesOnSo) {
  Create();
  Create();
  Submit submit = MakeSubmit(1, RandomTokens(150, 1), 80, /*num_choices=*/2);
  submit.prefill = fleet_.peer(1);
  submit.disaggregate_from_tokens = 1;
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_P(EngineDrawnTest, ARunThatFailsAtAGuessedTokenHasDeliveredThoseBefore) {
  Submit submit = MakeSubmit(1, RandomTokens(20, 1), 100);
  Create(SmallEngine(), /*failing_token=*/TokensOf(submit)[9].token);
  fleet_.Submit(0, submit);
  DrawEach(kMaxDrawn);
  Run();
  EXPECT_EQ(NumTokens(submit), 10u);
  EXPECT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
}

INSTANTIATE_TEST_SUITE_P(All, EngineDrawnTest, testing::Bool(), [](const auto& overlap) {
  return overlap.param ? "Overlapping" : "OneByOne";
});

using EngineDrawnOverlapTest = DrawnTest;

TEST_F(EngineDrawnOverlapTest, AStepGoesOnWhereverTheOneBeforeGot) {
  Create(/*overlap=*/true);
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 100);
  Decode(submit);
  const size_t before = NumTokens(submit);
  ASSERT_EQ(Begin(), 1);
  ASSERT_EQ(Begin(), 1);
  DrawEach(5);
  Finish();
  EXPECT_EQ(NumTokens(submit), before + 5);
  ASSERT_EQ(Begin(), 1);
  DrawEach(0);
  Finish();
  EXPECT_EQ(NumTokens(submit), before + 5);
  ASSERT_EQ(Begin(), 1);
  DrawEach(3);
  Finish();
  EXPECT_EQ(NumTokens(submit), before + 8);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineDrawnOverlapTest, TwoStepsHaveAPlaceForAllThatTheyMayDraw) {
  Create(/*overlap=*/true);
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 100);
  Decode(submit);
  const size_t before = NumTokens(submit);
  DrawEach(kMaxDrawn);
  ASSERT_EQ(Begin(), 1);
  ASSERT_EQ(Begin(), 1);
  Finish();
  Finish();
  EXPECT_EQ(NumTokens(submit), before + 2 * kMaxDrawn);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineDrawnOverlapTest, WhatARunningStepIsSureToEndIsNotBegun) {
  Create(/*overlap=*/true);
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 8);
  Decode(submit);
  ASSERT_EQ(Begin(), 1);
  ASSERT_EQ(Begin(), 1);
  DrawEach(static_cast<int32_t>(7 - NumTokens(submit)));
  Finish();
  EXPECT_EQ(NumTokens(submit), 7u);
  EXPECT_EQ(Begin(), 0) << "the step that runs draws its last token";
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.executor(0).computed_tokens(), 20 + 7);
}

TEST_F(EngineDrawnOverlapTest, WhatFindsNoPlaceIsComputedByALaterStep) {
  Create(/*overlap=*/true, SmallEngine(/*num_blocks=*/4));
  // Blocks of the other: none is free when the one that runs draws beyond its own.
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 40);
  const Submit other = MakeSubmit(2, RandomTokens(30, 2), 3);
  Decode(submit);
  fleet_.Submit(0, other);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.CheckFinished(other), "");
}

}  // namespace
}  // namespace tandem
