// What peers may say, who is meant by it, and what becomes of the others.

#include <gmock/gmock.h>

#include <vector>

#include "tests/unit/runtime/engine/engine_transfer_fixture.h"

namespace tandem {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

TEST_F(EngineTransferTest, APromptThatComesToADrainingPrefillWorkerIsRefused) {
  Create();
  fleet_.engine(kPrefill).Drain(fleet_.now_us());
  const Submit submit = Disaggregated(1, RandomTokens(100, 3), 10);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(computed(kPrefill), 0);
  ASSERT_THAT(fleet_.record(submit.attempt).refused, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(submit.attempt).refused[0]));
  EXPECT_TRUE(fleet_.record(submit.attempt).by_prefill);
}

TEST_F(EngineTransferTest, ATransferBelongsToTwoPeersAndNobodyElseHasASay) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 10);
  DecodeUntil("Start", submit);
  const JobId job = JobOf(submit);
  for (const DecodeToPrefill& message : std::vector<DecodeToPrefill>{
           Grant{.job = job, .reservation = {.index = 7, .generation = 7}}, Committed{.job = job},
           PrefillCancel{.job = job, .time_left_us = 1'000'000}}) {
    fleet_.engine(kPrefill).OnDecodeMessage(/*decode=*/999, message, fleet_.now_us());
  }
  for (const PrefillToDecode& message : std::vector<PrefillToDecode>{
           FirstToken{.job = job, .tokens = {SampledToken()}}, Done{.job = job, .num_frames = 10},
           PrefillRefused{.job = job, .status = absl::InternalError("x")}}) {
    fleet_.engine(kDecode).OnPrefillMessage({.name = "stranger", .incarnation = 1}, message,
                                            fleet_.now_us());
  }
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.messages("Committed"), 1);
  EXPECT_EQ(fleet_.messages("Refused"), 0);
}

TEST_F(EngineTransferTest, ASubmitThatComesAgainWhileItRunsIsOne) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 10);
  DecodeUntil("Start", submit);
  fleet_.engine(kPrefill).OnDecodeMessage(100, PrefillSubmitOf(submit), fleet_.now_us());
  EXPECT_EQ(fleet_.engine(kPrefill).Load().waiting_sequences, 0);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.messages("Start"), 1);
}

TEST_F(EngineTransferTest, OtherThanOneFirstTokenForEachChoiceEndsTheAttempt) {
  Create();
  for (const size_t num_tokens : {1, 3}) {
    const Submit submit = Disaggregated(num_tokens, RandomTokens(100, num_tokens), 10, 2);
    fleet_.Submit(kDecode, submit);
    FirstToken first{.job = num_tokens == 1 ? JobId{1} : JobId{2}};
    first.tokens.resize(num_tokens);
    fleet_.engine(kDecode).OnPrefillMessage(fleet_.peer(kPrefill).worker, first, fleet_.now_us());
    ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1)) << num_tokens;
    EXPECT_TRUE(absl::IsInternal(fleet_.record(submit.attempt).ended[0]));
    EXPECT_THAT(fleet_.record(submit.attempt).prompts, IsEmpty());
  }
  Run();
}

// Its router goes on from the token that the client has, whatever the prefill worker says of
// itself.
TEST_F(EngineTransferTest, APrefillWorkerThatGivesUpAfterTheFirstTokenIsALostTransfer) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(100, 3), 10);
  fleet_.HoldFrames();
  DecodeUntilFirstToken(submit);
  fleet_.engine(kDecode).OnPrefillMessage(
      fleet_.peer(kPrefill).worker,
      PrefillRefused{.job = JobOf(submit), .status = absl::ResourceExhaustedError("no room")},
      fleet_.now_us());
  EXPECT_THAT(fleet_.record(submit.attempt).refused, IsEmpty());
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(submit.attempt).ended[0]));
  fleet_.ReleaseFrames();
  Run();
}

class EngineLossTest : public EngineTransferTest {
 protected:
  // The pair loses its session, which ends `lost` alone.
  void ExpectThatABreakEnds(const Submit& lost, const Submit& other) {
    fleet_.BreakSession(kDecode, kPrefill);
    Run();
    ASSERT_THAT(fleet_.record(lost.attempt).ended, SizeIs(1));
    EXPECT_EQ(fleet_.CheckFinished(other), "");
  }
};

TEST_F(EngineLossTest, OnlyThePromptsOfAPrefillWorkerThatIsLostEnd) {
  Create();
  fleet_.AddWorker({.engine = SmallEngine()});
  const Submit lost = Disaggregated(1, RandomTokens(100, 1), 6);
  Submit other = MakeSubmit(2, RandomTokens(100, 2), 6);
  other.prefill = fleet_.peer(2);
  other.disaggregate_from_tokens = 1;
  fleet_.Submit(kDecode, lost);
  fleet_.Submit(kDecode, other);
  ExpectThatABreakEnds(lost, other);
}

TEST_F(EngineLossTest, OnlyThePromptsOfADecodeWorkerThatIsLostAreForgotten) {
  Create();
  fleet_.AddWorker({.engine = SmallEngine()});
  const Submit lost = Disaggregated(1, RandomTokens(100, 1), 6);
  const Submit other = Disaggregated(2, RandomTokens(100, 2), 6);
  fleet_.Submit(kDecode, lost);
  fleet_.Submit(2, other);
  fleet_.RunUntil([&] { return fleet_.messages("Start") == 2; });
  ExpectThatABreakEnds(lost, other);
}

// The transport tells of a frame after the engine has closed what it was for, and knows no better.
TEST_F(EngineTransferTest, AFrameOfAReservationThatIsOverIsNobodys) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 10);
  DecodeUntil("Grant", submit);
  for (const JobId job : {JobOf(submit), JobId{77}}) {
    fleet_.engine(kDecode).OnFrameReceived({.reservation = {.index = 0, .generation = 9},
                                            .job = job,
                                            .ordinal = 0,
                                            .block = 63,
                                            .outcome = FrameOutcome::kVerified},
                                           fleet_.now_us());
  }
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.frames_delivered(), 10);
}

TEST_F(EngineTransferTest, APromptWhoseTimeIsUpIsNotComputed) {
  Create();
  PrefillSubmit submit = PrefillSubmitOf(Disaggregated(1, RandomTokens(20, 3), 10));
  submit.spec.time_left_us = 1'000'000;
  fleet_.engine(kPrefill).OnDecodeMessage(100, submit, fleet_.now_us());
  fleet_.Advance(1'000'000);
  Run();
  EXPECT_EQ(fleet_.messages("Refused"), 1);
  EXPECT_EQ(computed(kPrefill), 0);
}

}  // namespace
}  // namespace tandem
