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

}  // namespace
}  // namespace tandem
