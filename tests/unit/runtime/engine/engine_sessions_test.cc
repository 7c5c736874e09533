// Names that peers choose: each means something on its own session, whoever else uses it.

#include <gmock/gmock.h>

#include "tests/unit/runtime/engine/engine_transfer_fixture.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr SessionId kHonest = EngineFleet::kRouter;
constexpr SessionId kOther = kHonest + 1;

class EngineSessionsTest : public EngineTransferTest {
 protected:
  // Two requests of the same name.
  const Submit honest_ = MakeSubmit(7, RandomTokens(40, 1), 6);
  const Submit other_ = MakeSubmit(7, RandomTokens(50, 2), 4);
};

TEST_F(EngineSessionsTest, TwoRoutersCallTheirAttemptsTheSame) {
  Create();
  fleet_.Submit(kDecode, other_, kOther);
  fleet_.Submit(kDecode, honest_, kHonest);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(honest_, kHonest), "");
  EXPECT_EQ(fleet_.CheckFinished(other_, kOther), "");
}

TEST_F(EngineSessionsTest, NobodyCancelsAnothersAttempt) {
  Create();
  fleet_.Submit(kDecode, honest_, kHonest);
  fleet_.RunOne();
  fleet_.Cancel(kDecode, honest_.attempt, /*time_left_us=*/1'000'000, kOther);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(honest_, kHonest), "");
  EXPECT_THAT(fleet_.record(honest_.attempt, kOther).aborts,
              ElementsAre(AbortOutcome::kTombstoned));
  EXPECT_THAT(fleet_.record(honest_.attempt, kHonest).aborts, IsEmpty());
}

TEST_F(EngineSessionsTest, WhatOneHasEndedOrCancelledAnotherMayBegin) {
  Create();
  fleet_.Submit(kDecode, other_, kOther);
  fleet_.Cancel(kDecode, other_.attempt, /*time_left_us=*/60'000'000, kOther);
  fleet_.Cancel(kDecode, honest_.attempt, /*time_left_us=*/60'000'000, kOther + 1);
  fleet_.Submit(kDecode, honest_, kHonest);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(honest_, kHonest), "");
}

TEST_F(EngineSessionsTest, TheirPromptsTravelUnderNumbersOfTheDecodeWorker) {
  Create();
  Submit other = Disaggregated(7, RandomTokens(150, 2), 4);
  const Submit honest = Disaggregated(7, RandomTokens(160, 1), 6);
  fleet_.Submit(kDecode, other, kOther);
  fleet_.Submit(kDecode, honest, kHonest);
  Run();
  EXPECT_EQ(fleet_.messages("Committed"), 2);
  EXPECT_EQ(fleet_.CheckFinished(honest, kHonest), "");
  EXPECT_EQ(fleet_.CheckFinished(other, kOther), "");
  other.attempt.attempt = 2;
  const Submit again = Disaggregated(7, RandomTokens(170, 3), 6);
  fleet_.Submit(kDecode, other, kOther);
  fleet_.Submit(kDecode, again, kOther + 1);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(again, kOther + 1), "") << "others have ended one of that name";
}

// Whichever of them it is.
TEST_F(EngineSessionsTest, PromptsOfADecodeWorkerThatIsLostAreForgottenAndNoOthers) {
  for (const int lost : {0, 2}) {
    SCOPED_TRACE(lost);
    EngineFleet fleet;
    Create(&fleet);
    fleet.AddWorker({.engine = SmallEngine(64)});  // Another decode worker.
    const Submit first = Disaggregated(fleet, 1, RandomTokens(160, 1), 6);
    const Submit second = Disaggregated(fleet, 2, RandomTokens(150, 2), 4);
    fleet.Pause(kPrefill, true);
    fleet.Submit(kDecode, first);
    fleet.Submit(2, second);
    ASSERT_TRUE(fleet.RunUntilQuiet());
    fleet.BreakSession(lost, kPrefill);
    fleet.Pause(kPrefill, false);
    ASSERT_TRUE(fleet.RunUntilQuiet());
    const Submit& kept = lost == 0 ? second : first;
    EXPECT_EQ(fleet.executor(kPrefill).computed_tokens(), std::ssize(kept.spec.token_ids));
    EXPECT_EQ(fleet.CheckFinished(kept), "");
    ExpectQuiet(fleet);
  }
}

}  // namespace
}  // namespace tandem
