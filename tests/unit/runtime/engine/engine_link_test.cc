// Links that are slow, stand still or lose.

#include <gmock/gmock.h>

#include "tests/unit/runtime/engine/engine_transfer_fixture.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::SizeIs;

constexpr LivenessTimes kTimes;

class EngineLinkTest : public EngineTransferTest {
 protected:
  // Timers go on, messages arrive, frames do not.
  void Wait(int64_t us) {
    for (int64_t waited = 0; waited < us; waited += kTimes.renew_us) {
      fleet_.Advance(kTimes.renew_us);
      fleet_.Renew();
      while (fleet_.RunOne()) {
      }
    }
  }
  // Computed there, handed to the transport, and not one block has come.
  Submit StuckOnTheWay(uint64_t counter) {
    const Submit submit = Disaggregated(counter, RandomTokens(150, counter), 5);
    fleet_.QueueFrames();
    const int64_t done = fleet_.messages("Done");
    fleet_.Submit(kDecode, submit);
    fleet_.RunUntil([&] { return fleet_.messages("Done") == done + 1; });
    EXPECT_EQ(fleet_.frames_held(), 10);
    return submit;
  }
};

TEST_F(EngineLinkTest, AJobRenewsUntilItsLastFrameHasLeft) {
  Create();
  const Submit submit = StuckOnTheWay(1);
  Wait(2 * kTimes.lease_us);
  EXPECT_THAT(fleet_.record(submit.attempt).ended, IsEmpty());
  fleet_.ReleaseFrames();
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(kDecode), 4);
}

TEST_F(EngineLinkTest, ItsRouterIsToldWhoComputedThePrompt) {
  Create();
  const Submit there = Disaggregated(1, RandomTokens(100, 3), 5);  // Computed in one chunk.
  const Submit here = MakeSubmit(2, RandomTokens(100, 4), 5);
  for (const Submit& submit : {there, here}) fleet_.Submit(kDecode, submit);
  Run();
  for (const Submit& submit : {there, here}) {
    ASSERT_THAT(fleet_.record(submit.attempt).prompts, SizeIs(1));
  }
  EXPECT_TRUE(fleet_.record(there.attempt).prompts[0].by_prefill);
  EXPECT_FALSE(fleet_.record(here.attempt).prompts[0].by_prefill);
}

TEST_F(EngineLinkTest, ALinkIsHandedOnlySoManyFramesAheadOfAllPromptsTogether) {
  EngineOptions options = SmallEngine();
  options.max_frames_ahead = 4;
  fleet_.AddWorker({.engine = SmallEngine()});
  fleet_.AddWorker({.engine = options});
  fleet_.HoldFrames();
  std::vector<Submit> submits;
  for (const uint64_t i : {1, 2, 3}) {  // 30 blocks.
    submits.push_back(Disaggregated(i, RandomTokens(150, i), 5));
    fleet_.Submit(kDecode, submits.back());
  }
  while (fleet_.RunOne()) {
  }
  EXPECT_EQ(fleet_.messages("Grant"), 3);
  EXPECT_EQ(fleet_.frames_held(), 4);
  EXPECT_EQ(fleet_.messages("Done"), 0);
  fleet_.Cancel(kDecode, submits[1].attempt);  // Its frames wait for those of the first.
  fleet_.ReleaseFrames();
  Run();
  EXPECT_EQ(fleet_.messages("Frame"), 20);
  for (const size_t i : {0, 2}) EXPECT_EQ(fleet_.CheckFinished(submits[i]), "");
  EXPECT_EQ(fleet_.AuditQuiet(), "");
}

TEST_F(EngineLinkTest, TheFramesOfThePromptThatCameFirstGoFirst) {
  EngineOptions options = SmallEngine();
  options.max_frames_ahead = 4;
  fleet_.AddWorker({.engine = SmallEngine()});
  fleet_.AddWorker({.engine = options});
  const Submit first = Disaggregated(1, RandomTokens(150, 1), 5);
  const Submit second = Disaggregated(2, RandomTokens(150, 2), 5);
  for (const Submit& submit : {first, second}) fleet_.Submit(kDecode, submit);
  fleet_.RunUntil([&] { return fleet_.messages("Done") == 1; });
  EXPECT_LT(fleet_.messages("Frame"), 10 + 4);
  Run();
  for (const Submit& submit : {first, second}) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineLinkTest, AFrameThatCouldNotBeSentEndsTheAttemptAtOnce) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 5);
  int frames = 0;
  fleet_.DropMessages([&](const std::string& kind) { return kind == "Frame" && ++frames == 3; });
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.messages("Refused"), 1);
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(submit.attempt).ended[0]));
}

TEST_F(EngineLinkTest, WhatWasSentAndLostIsWaitedForNoLongerThanALease) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 5);
  DecodeUntil("Grant", submit);
  int frames = 0;
  // As a network that takes a frame and lets it vanish: the sender hears that it went.
  fleet_.LoseFrames([&] { return ++frames == 3; });
  Wait(2 * kTimes.lease_us);
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_THAT(fleet_.pauses(), ElementsAre(PauseReason::kTimeout));
  EXPECT_THAT(fleet_.last_pause(), MatchesRegex("9 of 10 blocks after [0-9]+ ms of silence"));
}

TEST_F(EngineLinkTest, ARenewalMovesTheEndOfTheReservationButKeepsOne) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 5);
  DecodeUntil("Grant", submit);
  fleet_.Pause(kPrefill, true);
  const auto wait = [&](int64_t us) {
    fleet_.Advance(us);
    while (fleet_.RunOne()) {
    }
  };
  wait(kTimes.lease_us / 2);
  fleet_.Renew();
  wait(0);
  wait(kTimes.lease_us * 3 / 4);  // The reservation would have ended in here.
  EXPECT_THAT(fleet_.record(submit.attempt).ended, IsEmpty());
  wait(kTimes.lease_us / 2);
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(submit.attempt).ended[0]));
  fleet_.Pause(kPrefill, false);
  Run();
}

TEST_F(EngineLinkTest, AGrantThatWasHeldAndThatNothingFollowsEndsWithItsReservation) {
  Create(/*decode_blocks=*/24);
  const Submit first = Disaggregated(1, RandomTokens(150, 1), 5);
  const Submit second = Disaggregated(2, RandomTokens(150, 2), 5);
  fleet_.DropMessages([](const std::string& kind) {
    return kind != "Submit" && kind != "Start" && kind != "Grant" && kind != "Cancel";
  });
  fleet_.Submit(kDecode, first);
  fleet_.Submit(kDecode, second);
  fleet_.RunUntil([&] { return fleet_.messages("Start") == 2; });
  while (fleet_.RunOne()) {
  }
  EXPECT_EQ(fleet_.messages("Grant"), 1);
  fleet_.Cancel(kDecode, first.attempt);
  fleet_.RunUntil([&] { return fleet_.messages("Grant") == 2; });
  fleet_.Pause(kPrefill, true);
  fleet_.Advance(kTimes.lease_us);
  fleet_.engine(kDecode).Step(fleet_.now_us());
  ASSERT_THAT(fleet_.record(second.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(second.attempt).ended[0]));
  EXPECT_THAT(fleet_.pauses(), ElementsAre(PauseReason::kTimeout));
  fleet_.DropMessages(nullptr);
  fleet_.Pause(kPrefill, false);
  fleet_.BreakSession(kDecode, kPrefill);
  Run();
}

TEST_F(EngineLinkTest, AChunkThatIsComputedMovesItToo) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 5);
  DecodeUntil("Grant", submit);
  fleet_.Pause(kPrefill, true);
  for (int i = 0; i < 3; ++i) {
    fleet_.Advance(kTimes.lease_us * 3 / 4);
    fleet_.engine(kDecode).OnPrefillMessage(fleet_.peer(kPrefill).worker,
                                            Progress{.job = JobOf(submit)}, fleet_.now_us());
    while (fleet_.RunOne()) {
    }
    EXPECT_THAT(fleet_.record(submit.attempt).ended, IsEmpty()) << i;
  }
  fleet_.Pause(kPrefill, false);
  Run();
}

TEST_F(EngineLinkTest, ALinkThatStandsStillEndsTheTransferAndIsPaused) {
  Create();
  const Submit submit = StuckOnTheWay(1);
  EXPECT_EQ(fleet_.engine(kPrefill).Load().running_sequences, 0) << "it has no place in a batch";
  Wait(kTimes.link_stalled_us - kTimes.lease_us);
  EXPECT_THAT(fleet_.record(submit.attempt).ended, IsEmpty());
  Wait(3 * kTimes.lease_us);
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(submit.attempt).ended[0]));
  EXPECT_THAT(fleet_.pauses(), ElementsAre(PauseReason::kTimeout));
  // Nobody waits for them any more.
  EXPECT_EQ(fleet_.frames_held(), 0);
  EXPECT_EQ(fleet_.engine(kPrefill).Load().blocks.quarantined, 0);
}

TEST_F(EngineLinkTest, FramesOfACancelledJobAreWithdrawnAndNoOthers) {
  Create();
  const Submit cancelled = StuckOnTheWay(1);
  const Submit other = Disaggregated(2, RandomTokens(70, 2), 5);
  fleet_.Submit(kDecode, other);
  fleet_.RunUntil([&] { return fleet_.messages("Done") == 2; });
  fleet_.Cancel(kDecode, cancelled.attempt);
  while (fleet_.RunOne()) {
  }
  EXPECT_EQ(fleet_.frames_held(), 5);
  EXPECT_EQ(fleet_.engine(kPrefill).Load().blocks.quarantined, 0);
  EXPECT_EQ(fleet_.frames_delivered(), 0);
  fleet_.ReleaseFrames();
  Run();
  EXPECT_EQ(fleet_.CheckFinished(other), "");
}

TEST_F(EngineLinkTest, APausedPeerIsTriedAgainAndThePauseGrowsUntilItWorks) {
  Create();
  const auto lose = [&] { fleet_.BreakSession(kDecode, kPrefill); };
  const auto submits = [&](uint64_t counter) {
    const int64_t before = fleet_.messages("Submit");
    const Submit submit = Disaggregated(counter, RandomTokens(100, counter), 3);
    fleet_.Submit(kDecode, submit);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(submit), "");
    return fleet_.messages("Submit") - before;
  };
  lose();
  EXPECT_EQ(submits(1), 0);
  fleet_.Advance(kTimes.first_pause_us);
  lose();  // Twice as long.
  fleet_.Advance(kTimes.first_pause_us);
  lose();  // In the same pause.
  EXPECT_EQ(submits(2), 0);
  fleet_.Advance(kTimes.first_pause_us);
  EXPECT_EQ(submits(3), 1);
  lose();  // From the beginning.
  fleet_.Advance(kTimes.first_pause_us);
  EXPECT_EQ(submits(4), 1);
  EXPECT_THAT(fleet_.pauses(), SizeIs(3));
  EXPECT_EQ(fleet_.last_pause(), "the session broke");
}

// Its blocks come, but later than they would have been computed here.
TEST_F(EngineLinkTest, ALinkThatCostsTimeIsPausedUnlessAskedForAtAnyPrice) {
  Create();
  for (const int32_t from : {1, 64}) {
    SCOPED_TRACE(from);
    Submit submit = Disaggregated(static_cast<uint64_t>(from), RandomTokens(150, from), 5);
    submit.disaggregate_from_tokens = from;
    fleet_.QueueFrames();
    const int64_t done = fleet_.messages("Done");
    fleet_.Submit(kDecode, submit);
    fleet_.RunUntil([&] { return fleet_.messages("Done") == done + 1; });
    Wait(1'000'000);
    fleet_.ReleaseFrames();
    Run();
    EXPECT_EQ(fleet_.CheckFinished(submit), "");
    EXPECT_THAT(fleet_.pauses(), SizeIs(from == 1 ? 0 : 1));
  }
  EXPECT_THAT(fleet_.pauses(), ElementsAre(PauseReason::kSlow));
}

// What a link costs is judged by what the missing tokens would have cost here, at the pace of those
// that were computed there.
class LinkPaceTest : public EngineLinkTest {
 protected:
  // The prompt takes so long there, its blocks so much longer to come; half of it is cached at
  // `with_prefix`.
  void Transfer(int with_prefix, int64_t computing_us, int64_t late_us) {
    Create();
    fleet_.SetFastNetwork(true);
    const std::vector<int32_t> prompt = RandomTokens(160, 3);
    fleet_.Submit(with_prefix, MakeSubmit(1, {prompt.begin(), prompt.begin() + 80}, 1));
    Run();
    Submit submit = Disaggregated(2, prompt, 5);
    submit.disaggregate_from_tokens = 64;
    fleet_.Submit(kDecode, submit);
    fleet_.RunUntil([&] { return fleet_.messages("Grant") == 1; });  // So it has been started.
    fleet_.QueueFrames();
    fleet_.Advance(computing_us);
    RunUntilFirstToken(submit);
    fleet_.Advance(late_us);
    fleet_.ReleaseFrames();
    Run();
    EXPECT_EQ(fleet_.CheckFinished(submit), "");
  }
};

TEST_F(LinkPaceTest, WhatIsCachedHereWouldNotBeComputedHere) {
  Transfer(/*with_prefix=*/kDecode, /*computing_us=*/1'000'000, /*late_us=*/750'000);
  EXPECT_THAT(fleet_.pauses(), ElementsAre(PauseReason::kSlow));
  EXPECT_THAT(fleet_.last_pause(),
              MatchesRegex("the last block of 160 tokens came 75[0-9] ms after the first token; "
                           "the 80 that were missing would have been computed here in 50[0-9] ms"));
}

TEST_F(LinkPaceTest, WhatIsCachedThereTookNoTimeThere) {
  Transfer(/*with_prefix=*/kPrefill, /*computing_us=*/500'000, /*late_us=*/750'000);
  EXPECT_THAT(fleet_.pauses(), IsEmpty());
}

TEST_F(EngineLinkTest, ALinkIsNotToBlameForAGrantThatCameLate) {
  Create(/*decode_blocks=*/12);
  const Submit running = MakeSubmit(1, RandomTokens(30, 1), 120);
  fleet_.Submit(kDecode, running);
  RunUntilFirstToken(running);
  Submit submit = Disaggregated(2, RandomTokens(150, 2), 5);
  submit.disaggregate_from_tokens = 64;
  fleet_.Submit(kDecode, submit);
  RunUntilFirstToken(submit);
  EXPECT_EQ(fleet_.messages("Grant"), 0);
  fleet_.Advance(1'000'000);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.messages("Committed"), 1);
  EXPECT_THAT(fleet_.pauses(), IsEmpty());
}

}  // namespace
}  // namespace tandem
