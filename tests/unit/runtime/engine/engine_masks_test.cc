// Draws under masks that the host makes from what was drawn before: with the step, or after its
// forward pass is begun; in time, or late.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/simulation/simulated_grammar.h"
#include "tests/support/engine_cases.h"
#include "tests/support/engine_fleet.h"

namespace tandem {
namespace {

class MasksTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fleet_.AuditQuiet(), ""); }
  void Create(bool overlap, const EngineOptions& options = SmallEngine(), int32_t max_drawn = 1) {
    fleet_.AddWorker(
        {.engine = options, .max_drawn = max_drawn, .overlap_steps = overlap, .masker = &grammar_});
  }
  // A request whose tokens have masks.
  Submit MakeMasked(uint64_t counter, std::vector<int32_t> prompt, int32_t max_tokens,
                    int32_t num_choices = 1) {
    Submit submit = MakeSubmit(counter, std::move(prompt), max_tokens, num_choices);
    while (SimulatedGrammar().MasksOf(submit.spec) == nullptr) ++submit.spec.sampling.seed;
    return submit;
  }
  Submit MakeFree(uint64_t counter, std::vector<int32_t> prompt, int32_t max_tokens) {
    Submit submit = MakeSubmit(counter, std::move(prompt), max_tokens);
    while (SimulatedGrammar().MasksOf(submit.spec) != nullptr) ++submit.spec.sampling.seed;
    return submit;
  }
  std::vector<SampledToken> TokensOf(const Submit& submit) {
    return SimulatedModel().Generate(submit.spec.token_ids, 0, submit.spec.sampling,
                                     SimulatedGrammar().MasksOf(submit.spec).get());
  }
  int32_t Begin() { return fleet_.BeginStep(0).sequences; }  // In its batch.
  void Finish() { fleet_.FinishStep(0); }
  void Run() { ASSERT_TRUE(fleet_.RunUntilQuiet()); }
  // All have their first token, and no step runs.
  void Decode(const std::vector<Submit>& submits) {
    for (const Submit& submit : submits) fleet_.Submit(0, submit);
    for (const Submit& submit : submits) {
      while (fleet_.record(submit.attempt).tokens.empty()) ASSERT_TRUE(fleet_.RunOne());
    }
    while (fleet_.engine(0).steps_begun() > 0) Finish();
  }
  size_t NumTokens(const Submit& submit) {
    return fleet_.record(submit.attempt).tokens.at(0).size();
  }
  int64_t computed(int worker = 0) { return fleet_.executor(worker).computed_tokens(); }

  int64_t asked_ = 0;  // For masks.
  int32_t late_ = 0;   // So many of the next ones are not ready.
  int32_t late_every_ = 0;
  SimulatedGrammar grammar_{[this] {
    ++asked_;
    if (late_every_ > 0) return asked_ % late_every_ == 0;
    return late_ > 0 && late_-- > 0;
  }};
  EngineFleet fleet_;
};

// With steps that overlap, and without.
class EngineMasksTest : public MasksTest, public testing::WithParamInterface<bool> {
 protected:
  void Create(const EngineOptions& options = SmallEngine(), int32_t max_drawn = 1) {
    MasksTest::Create(GetParam(), options, max_drawn);
  }
};

TEST_P(EngineMasksTest, EveryTokenIsOneThatMayFollow) {
  Create();
  const Submit masked = MakeMasked(1, RandomTokens(20, 1), 30);
  const Submit free = MakeFree(2, RandomTokens(27, 2), 30);
  fleet_.Submit(0, masked);
  fleet_.Submit(0, free);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(masked), "");
  EXPECT_EQ(fleet_.CheckFinished(free), "");
  EXPECT_EQ(asked_, 30) << "once for each token";
  EXPECT_EQ(computed(), 20 + 27 + 2 * 29);
}

TEST_P(EngineMasksTest, EachChoiceHasItsOwn) {
  Create();
  const Submit submit = MakeMasked(1, RandomTokens(20, 1), 30, /*num_choices=*/3);
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(asked_, 1 + 3 * 29);
}

TEST_P(EngineMasksTest, AResumedStreamGoesOnUnderThem) {
  Create();
  const Submit whole = MakeMasked(1, RandomTokens(20, 1), 30);
  Submit resumed = whole;
  const std::vector<SampledToken> tokens = TokensOf(whole);
  for (size_t i = 0; i < 12; ++i) resumed.spec.token_ids.push_back(tokens[i].token);
  fleet_.Submit(0, resumed);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(resumed), "");
}

TEST_P(EngineMasksTest, APromptThatIsCachedHasOneForItsFirstToken) {
  Create();
  const Submit first = MakeMasked(1, RandomTokens(33, 1), 5);
  fleet_.Submit(0, first);
  Run();
  const Submit again = MakeMasked(2, RandomTokens(33, 1), 5);
  fleet_.Submit(0, again);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(again), "");
  EXPECT_EQ(fleet_.record(again.attempt).prompts[0].cached_tokens, 32);
}

TEST_P(EngineMasksTest, APromptThatIsComputedElsewhereHasThemThereAndHere) {
  Create();
  Create();
  Submit submit = MakeMasked(1, RandomTokens(150, 1), 40, /*num_choices=*/2);
  submit.prefill = fleet_.peer(1);
  submit.disaggregate_from_tokens = 1;
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(1), 150);
}

TEST_P(EngineMasksTest, WhoIsPreemptedGoesOnUnderThem) {
  Create(SmallEngine(/*num_blocks=*/9));
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 4; ++i) submits.push_back(MakeMasked(i, RandomTokens(30, i), 70));
  for (const Submit& submit : submits) fleet_.Submit(0, submit);
  Run();
  EXPECT_GT(fleet_.preemptions(), 0);
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_P(EngineMasksTest, ALateOneCostsItsSequenceThatStep) {
  Create();
  const Submit masked = MakeMasked(1, RandomTokens(20, 1), 30);
  const Submit free = MakeFree(2, RandomTokens(27, 2), 30);
  Decode({masked, free});
  const size_t before = NumTokens(masked), of_free = NumTokens(free);
  late_ = 1;
  ASSERT_EQ(Begin(), 2);
  Finish();
  EXPECT_EQ(NumTokens(masked), before);
  EXPECT_EQ(NumTokens(free), of_free + 1);
  ASSERT_EQ(Begin(), 2);
  Finish();
  EXPECT_EQ(NumTokens(masked), before + 1);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(masked), "");
  EXPECT_EQ(fleet_.CheckFinished(free), "");
  EXPECT_EQ(computed(), 20 + 27 + 2 * 29 + 1);
}

// A prompt that fills its blocks has no name for the last one before its token is drawn.
TEST_P(EngineMasksTest, ALateOneHasThePromptsLastTokenComputedAgain) {
  for (const int32_t window : {0, 2}) {
    EngineOptions options = SmallEngine();
    options.window = window;
    Create(options);
    const int worker = fleet_.num_workers() - 1;
    uint64_t counter = 10 * static_cast<uint64_t>(worker);
    for (const int32_t length : {1, 32, 33, 100}) {
      ++counter;
      Submit submit = MakeMasked(counter, RandomTokens(length, counter), 20, /*num_choices=*/2);
      submit.spec.sampling.num_prompt_logprobs = 1;
      const int64_t before = computed(worker);
      late_ = 3;
      fleet_.Submit(worker, submit);
      Run();
      EXPECT_EQ(fleet_.CheckFinished(submit), "") << length << " tokens, window " << window;
      EXPECT_EQ(computed(worker) - before, length + 3 + 2 * 19);
    }
  }
}

TEST_P(EngineMasksTest, ALateOneOfAPromptForAnotherWorkerDelaysItsFirstToken) {
  Create();
  Create();
  for (const int32_t length : {96, 150}) {
    Submit submit = MakeMasked(static_cast<uint64_t>(length), RandomTokens(length, 1 + length), 40);
    submit.prefill = fleet_.peer(1);
    submit.disaggregate_from_tokens = 1;
    const int64_t before = computed(1);
    late_ = 2;
    fleet_.Submit(0, submit);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(submit), "");
    EXPECT_TRUE(fleet_.record(submit.attempt).prompts[0].by_prefill);
    EXPECT_EQ(computed(1) - before, length + 2);
  }
}

TEST_P(EngineMasksTest, ManyLateOnesLoseNothing) {
  Create(SmallEngine(/*num_blocks=*/12), /*max_drawn=*/4);
  late_every_ = 3;
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 6; ++i) {
    const std::vector<int32_t> prompt = RandomTokens(static_cast<int32_t>(13 * i), i);
    submits.push_back(i % 3 == 0 ? MakeFree(i, prompt, 50) : MakeMasked(i, prompt, 50, 2));
    fleet_.Submit(0, submits.back());
  }
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_P(EngineMasksTest, WithOneARunGivesOneTokenWhereOthersGuess) {
  Create(SmallEngine(), /*max_drawn=*/20);
  const Submit masked = MakeMasked(1, RandomTokens(20, 1), 100);
  const Submit free = MakeFree(2, RandomTokens(27, 2), 100);
  Decode({masked, free});
  const size_t before = NumTokens(masked), of_free = NumTokens(free);
  fleet_.executor(0).DrawEach(7);
  ASSERT_EQ(Begin(), 2);
  Finish();
  EXPECT_EQ(NumTokens(masked), before + 1);
  EXPECT_EQ(NumTokens(free), of_free + 7);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(masked), "");
  EXPECT_EQ(fleet_.CheckFinished(free), "");
}

TEST_P(EngineMasksTest, NoBlocksAreTakenForGuessesThatItMayNotMake) {
  Create(SmallEngine(), /*max_drawn=*/20);
  const Submit masked = MakeMasked(1, RandomTokens(20, 1), 100);
  Decode({masked});
  ASSERT_EQ(Begin(), 1);
  EXPECT_EQ(fleet_.engine(0).Load().blocks.held, 2);
  Finish();
  Run();
}

INSTANTIATE_TEST_SUITE_P(All, EngineMasksTest, testing::Bool(), [](const auto& overlap) {
  return overlap.param ? "Overlapping" : "OneByOne";
});

using EngineWaitingDrawsTest = MasksTest;

TEST_F(EngineWaitingDrawsTest, AForwardPassIsBegunBeforeItsMaskCanBe) {
  Create(/*overlap=*/true);
  const Submit masked = MakeMasked(1, RandomTokens(20, 1), 30);
  const Submit free = MakeFree(2, RandomTokens(27, 2), 30);
  Decode({masked, free});
  const size_t before = NumTokens(masked);
  const int64_t asked = asked_;
  ASSERT_EQ(Begin(), 2);
  EXPECT_EQ(asked_, asked + 1);
  ASSERT_EQ(Begin(), 2);
  EXPECT_EQ(asked_, asked + 1) << "the token before is not seen";
  Finish();
  EXPECT_EQ(asked_, asked + 2);
  EXPECT_EQ(NumTokens(masked), before + 1);
  Finish();
  EXPECT_EQ(NumTokens(masked), before + 2);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(masked), "");
  EXPECT_EQ(fleet_.CheckFinished(free), "");
}

TEST_F(EngineWaitingDrawsTest, ALateOneCostsTheStepThatIsBegunAlone) {
  Create(/*overlap=*/true);
  const Submit masked = MakeMasked(1, RandomTokens(20, 1), 30);
  Decode({masked});
  const size_t before = NumTokens(masked);
  ASSERT_EQ(Begin(), 1);
  ASSERT_EQ(Begin(), 1);
  late_ = 1;
  Finish();
  EXPECT_EQ(NumTokens(masked), before + 1);
  ASSERT_EQ(Begin(), 1) << "after a run that will draw nothing";
  Finish();
  EXPECT_EQ(NumTokens(masked), before + 1);
  Finish();
  EXPECT_EQ(NumTokens(masked), before + 2);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(masked), "");
}

TEST_F(EngineWaitingDrawsTest, WhoEndsBeforeItsDrawBeginsIsNotAskedFor) {
  Create(/*overlap=*/true);
  const Submit masked = MakeMasked(1, RandomTokens(20, 1), 30);
  const Submit other = MakeMasked(2, RandomTokens(27, 2), 30);
  Decode({masked, other});
  ASSERT_EQ(Begin(), 2);
  ASSERT_EQ(Begin(), 2);
  const int64_t asked = asked_;
  fleet_.Cancel(0, masked.attempt);
  Finish();
  EXPECT_EQ(asked_, asked + 1) << "for the other alone";
  Run();
  EXPECT_EQ(fleet_.CheckFinished(other), "");
  EXPECT_FALSE(fleet_.record(masked.attempt).token_after_end);
}

TEST_F(EngineWaitingDrawsTest, NorIsWhoStopsInTheStepBefore) {
  Create(/*overlap=*/true);
  Submit stopped = MakeMasked(1, RandomTokens(20, 1), 30);
  stopped.spec.sampling.stop_token_ids = {TokensOf(stopped)[1].token};
  const Submit other = MakeMasked(2, RandomTokens(27, 2), 30);
  Decode({stopped, other});
  ASSERT_EQ(NumTokens(stopped), 1u);
  ASSERT_EQ(Begin(), 2);
  ASSERT_EQ(Begin(), 2);
  const int64_t asked = asked_;
  Finish();
  EXPECT_EQ(asked_, asked + 1) << "for the other alone";
  Run();
  EXPECT_EQ(fleet_.CheckFinished(stopped), "");
  EXPECT_EQ(fleet_.CheckFinished(other), "");
}

TEST_F(EngineWaitingDrawsTest, NorIsWhoseStepFailed) {
  Create(/*overlap=*/true);
  const Submit masked = MakeMasked(1, RandomTokens(20, 1), 30);
  Decode({masked});
  ASSERT_EQ(Begin(), 1);
  ASSERT_EQ(Begin(), 1);
  const int64_t asked = asked_;
  fleet_.executor(0).FailNextStep();
  Finish();
  EXPECT_EQ(asked_, asked);
  Run();
  EXPECT_EQ(fleet_.record(masked.attempt).ended.size(), 1u);
}

}  // namespace
}  // namespace tandem
