// What an engine takes of a RequestSpec, as a worker of routers and of decode workers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_transfer_fixture.h"

namespace tandem {
namespace {

using testing::SizeIs;

class EngineSpecTest : public EngineTransferTest {
 protected:
  static constexpr int32_t kVocabulary = 1'000;

  void SetUp() override {
    EngineOptions options = SmallEngine();
    options.vocab_size = kVocabulary;
    for (const int worker : {kDecode, kPrefill}) {
      ASSERT_EQ(fleet_.AddWorker({.engine = options}), worker);
    }
  }
};

TEST_F(EngineSpecTest, ARouterIsRefusedIdsOutsideTheVocabularyAndNobodyElseIs) {
  const Submit other = MakeSubmit(2, RandomTokens(20, 1), 5);
  fleet_.Submit(kDecode, other);
  Submit submit = MakeSubmit(1, RandomTokens(20, 1), 5);
  for (const int32_t id : {-1, kVocabulary, 1 << 30}) {
    submit.spec.token_ids[7] = id;
    ++submit.attempt.attempt;
    fleet_.Submit(kDecode, submit);
    ASSERT_THAT(fleet_.record(submit.attempt).refused, SizeIs(1));
    EXPECT_TRUE(absl::IsInvalidArgument(fleet_.record(submit.attempt).refused[0]));
  }
  submit.spec.token_ids[7] = kVocabulary - 1;
  ++submit.attempt.attempt;
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.CheckFinished(other), "");
}

TEST_F(EngineSpecTest, ADecodeWorkerIsRefusedIdsOutsideTheVocabulary) {
  PrefillSubmit submit = PrefillSubmitOf(Disaggregated(1, RandomTokens(20, 1), 5));
  submit.spec.token_ids[7] = kVocabulary;
  fleet_.engine(kPrefill).OnDecodeMessage(100, submit, fleet_.now_us());
  Run();
  EXPECT_EQ(fleet_.messages("Refused"), 1);
  EXPECT_EQ(computed(kPrefill), 0);
}

TEST_F(EngineSpecTest, ABiasOutsideTheVocabularyIsRefusedOnBothSides) {
  Submit submit = Disaggregated(1, RandomTokens(20, 1), 5);
  submit.spec.sampling.logit_bias = {{kVocabulary, 1.0f}};
  fleet_.Submit(kDecode, submit);
  ASSERT_THAT(fleet_.record(submit.attempt).refused, SizeIs(1));
  EXPECT_TRUE(absl::IsInvalidArgument(fleet_.record(submit.attempt).refused[0]));
  fleet_.engine(kPrefill).OnDecodeMessage(100, PrefillSubmitOf(submit), fleet_.now_us());
  Run();
  EXPECT_EQ(fleet_.messages("Refused"), 1);
}

// In a simulated model every token depends on all of the bias, so that one which is lost or changed
// on some way shows.
TEST(SimulatedModelTest, EveryPartOfABiasCounts) {
  const std::vector<int32_t> prompt = RandomTokens(20, 1);
  SamplingParams sampling;
  sampling.max_tokens = 5;
  const auto generate = [&](std::vector<TokenBias> bias) {
    sampling.logit_bias = std::move(bias);
    return SimulatedModel().Generate(prompt, 0, sampling);
  };
  for (const float temperature : {0.0f, 1.0f}) {
    sampling.temperature = temperature;
    const auto want = generate({{3, 1.5f}, {9, -2.0f}});
    EXPECT_EQ(generate({{3, 1.5f}, {9, -2.0f}}), want);
    EXPECT_NE(generate({}), want);
    EXPECT_NE(generate({{3, 1.5f}}), want);
    EXPECT_NE(generate({{9, -2.0f}, {3, 1.5f}}), want);
    EXPECT_NE(generate({{4, 1.5f}, {9, -2.0f}}), want);
    EXPECT_NE(generate({{3, 1.5f}, {9, 2.0f}}), want);
  }
}

TEST_F(EngineSpecTest, ABiasHoldsForEveryChoiceWhereverItsTokensAreDrawn) {
  for (const int32_t num_choices : {1, 3}) {
    for (const bool travels : {false, true}) {
      SCOPED_TRACE(testing::Message() << num_choices << " choices" << (travels ? " travel" : ""));
      const auto counter = static_cast<uint64_t>(10 * num_choices + travels);
      Submit submit = travels ? Disaggregated(counter, RandomTokens(70, counter), 20, num_choices)
                              : MakeSubmit(counter, RandomTokens(70, counter), 20, num_choices);
      submit.spec.sampling.logit_bias = {{5, -100.0f}, {70, 12.5f}};
      fleet_.Submit(kDecode, submit);
      Run();
      EXPECT_EQ(fleet_.CheckFinished(submit), "");
    }
  }
}

TEST_F(EngineSpecTest, ABiasOutlivesPreemptionAndHoldsForWhatIsResumed) {
  EngineFleet fleet;
  fleet.AddWorker({.engine = SmallEngine(/*num_blocks=*/12)});
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 3; ++i) {
    Submit submit = MakeSubmit(i, RandomTokens(40, i), 80);
    submit.spec.sampling.logit_bias = {{static_cast<int32_t>(i), 3.0f}};
    if (i == 3) {  // A stream that two tokens of were delivered elsewhere.
      const auto tokens = SimulatedModel().Generate(submit.spec.token_ids, 0, submit.spec.sampling);
      for (const size_t known : {0, 1}) submit.spec.token_ids.push_back(tokens[known].token);
    }
    submits.push_back(submit);
    fleet.Submit(0, submit);
  }
  ASSERT_TRUE(fleet.RunUntilQuiet());
  EXPECT_GT(fleet.preemptions(), 0);
  for (const Submit& submit : submits) EXPECT_EQ(fleet.CheckFinished(submit), "");
  EXPECT_EQ(fleet.AuditQuiet(), "");
}

}  // namespace
}  // namespace tandem
