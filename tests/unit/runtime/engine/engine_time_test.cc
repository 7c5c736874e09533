// What time does to an engine to which nothing comes: when it wants to be stepped again, and what
// it forgets.

#include <gmock/gmock.h>

#include "tests/unit/runtime/engine/engine_transfer_fixture.h"

namespace tandem {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr LivenessTimes kTimes;

class EngineTimeTest : public EngineTransferTest {
 protected:
  // Each message takes the fleet some microseconds.
  void ExpectSleep(int worker, int64_t us) {
    const int64_t wakeup_us = fleet_.engine(worker).Step(fleet_.now_us()).next_wakeup_us;
    EXPECT_NEAR(static_cast<double>(wakeup_us - fleet_.now_us()), static_cast<double>(us), 1'000);
  }
  // Computed at the prefill worker; its blocks go nowhere.
  void SubmitWithoutStart(const Submit& submit) {
    fleet_.DropMessages([](const std::string& kind) { return kind == "Start"; });
    fleet_.Submit(kDecode, submit);
    Run();
    EXPECT_GT(fleet_.engine(kPrefill).Load().blocks.held, 0);
  }
  void CancelAndRun(const Submit& submit) {
    fleet_.Cancel(kDecode, submit.attempt);
    Run();
  }
};

TEST_F(EngineTimeTest, APromptIsToldOnceWithWhenItCameAndWhenItWasBegun) {
  Create();
  const Submit here = MakeSubmit(1, RandomTokens(150, 1), 5, /*num_choices=*/2);
  const Submit there = Disaggregated(2, RandomTokens(150, 2), 5);
  fleet_.Pause(kDecode, true);
  const int64_t came_us = fleet_.now_us();
  fleet_.Submit(kDecode, here);
  fleet_.Advance(7'000);
  const int64_t begun_us = fleet_.now_us();
  fleet_.Pause(kDecode, false);
  while (fleet_.RunOne()) fleet_.Advance(2'000);
  ASSERT_THAT(fleet_.prompts_computed(), SizeIs(1)) << "its chunks and choices are no prompts";
  const EngineFleet::PromptComputed& first = fleet_.prompts_computed()[0];
  EXPECT_EQ(first.worker, kDecode);
  EXPECT_NEAR(static_cast<double>(first.arrived_us), static_cast<double>(came_us), 1'000);
  EXPECT_NEAR(static_cast<double>(first.begun_us), static_cast<double>(begun_us), 1'000);

  fleet_.Submit(kDecode, there);
  Run();
  ASSERT_THAT(fleet_.prompts_computed(), SizeIs(2)) << "where it was computed, and nowhere else";
  EXPECT_EQ(fleet_.prompts_computed()[1].worker, kPrefill);
  EXPECT_GE(fleet_.prompts_computed()[1].arrived_us, begun_us);
  EXPECT_GE(fleet_.prompts_computed()[1].begun_us, fleet_.prompts_computed()[1].arrived_us);
}

TEST_F(EngineTimeTest, AnEngineThatStandsRenewsWhatItHasAskedForAndNotWhatItIsToSend) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 1), 5);
  fleet_.HoldFrames();
  fleet_.Submit(kDecode, submit);
  Run();
  const auto renewals = [this](int64_t since_progress_us) {
    const int64_t before = fleet_.messages("Renew");
    fleet_.Renew(since_progress_us);
    Run();
    return fleet_.messages("Renew") - before;
  };
  EXPECT_EQ(renewals(kTimes.engine_stalled_us - 1), 2) << "the lease, and the reservation";
  EXPECT_EQ(renewals(kTimes.engine_stalled_us), 1) << "the lease";
  fleet_.ReleaseFrames();
  Run();
}

TEST_F(EngineTimeTest, APrefillWorkerSleepsUntilALeaseEnds) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(40, 1), 5);
  SubmitWithoutStart(submit);
  ExpectSleep(kPrefill, kTimes.lease_us);
  CancelAndRun(submit);
}

TEST_F(EngineTimeTest, APrefillWorkerSleepsUntilADeadline) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(40, 1), 5);
  submit.spec.time_left_us = kTimes.lease_us / 3;
  SubmitWithoutStart(submit);
  ExpectSleep(kPrefill, submit.spec.time_left_us);
  CancelAndRun(submit);
}

TEST_F(EngineTimeTest, ADecodeWorkerSleepsUntilAGrantWasHeldForTooLong) {
  Create(/*decode_blocks=*/12);
  const Submit running = MakeSubmit(1, RandomTokens(30, 1), 120);
  const Submit submit = Disaggregated(2, RandomTokens(150, 2), 5);
  fleet_.Submit(kDecode, running);
  RunUntilFirstToken(running);
  fleet_.Submit(kDecode, submit);
  for (int i = 0; i < 30; ++i) fleet_.RunOne();
  EXPECT_EQ(fleet_.messages("Start"), 1);
  EXPECT_EQ(fleet_.messages("Grant"), 0);
  ExpectSleep(kDecode, kTimes.lease_us);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineTimeTest, HowLongAGrantWasHeldEndsWithTheGrantOrTheAttempt) {
  for (const bool granted : {false, true}) {
    SCOPED_TRACE(granted);
    EngineFleet fleet;
    Create(&fleet, /*decode_blocks=*/12);
    const Submit running = MakeSubmit(1, RandomTokens(30, 1), 120);
    const Submit held = Disaggregated(fleet, 2, RandomTokens(150, 2), 5);
    fleet.HoldFrames();
    fleet.Submit(kDecode, running);
    fleet.RunUntil([&] { return !fleet.record(running.attempt).tokens.empty(); });
    fleet.Submit(kDecode, held);
    for (int i = 0; i < 30; ++i) fleet.RunOne();
    EXPECT_EQ(fleet.messages("Start"), 1);
    EXPECT_EQ(fleet.messages("Grant"), 0);
    fleet.Advance(kTimes.lease_us / 2);
    fleet.Cancel(kDecode, granted ? running.attempt : held.attempt);
    const int64_t wakeup_us = fleet.engine(kDecode).Step(fleet.now_us()).next_wakeup_us;
    EXPECT_GE(wakeup_us - fleet.now_us(), kTimes.lease_us);
    EXPECT_EQ(fleet.messages("Grant"), granted ? 1 : 0);
    fleet.Cancel(kDecode, granted ? held.attempt : running.attempt);
    fleet.ReleaseFrames();
    ASSERT_TRUE(fleet.RunUntilQuiet());
    ExpectQuiet(fleet);
  }
}

TEST_F(EngineTimeTest, ALeaseThatIsRenewedOnceStillEnds) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(40, 1), 5);
  SubmitWithoutStart(submit);
  const auto wait = [&](int64_t us) {
    fleet_.Advance(us);
    fleet_.engine(kPrefill).Step(fleet_.now_us());
    return fleet_.engine(kPrefill).Load().blocks.held;
  };
  EXPECT_GT(wait(kTimes.lease_us / 2), 0);
  fleet_.Renew();
  while (fleet_.RunOne()) {
  }
  EXPECT_GT(wait(kTimes.lease_us - 1), 0);
  EXPECT_EQ(wait(1), 0);
  CancelAndRun(submit);
}

TEST_F(EngineTimeTest, WhoCannotRunHasNoWorkWithoutProgress) {
  Create(/*decode_blocks=*/64, /*prefill_blocks=*/12);
  const Submit first = Disaggregated(1, RandomTokens(150, 1), 5);
  SubmitWithoutStart(first);
  const Submit second = Disaggregated(2, RandomTokens(150, 2), 5);
  fleet_.Submit(kDecode, second);
  Run();
  EXPECT_EQ(fleet_.engine(kPrefill).Load().waiting_sequences, 1);
  EXPECT_FALSE(fleet_.engine(kPrefill).Load().has_work);
  fleet_.Submit(kPrefill, MakeSubmit(3, RandomTokens(20, 3), 1));
  EXPECT_TRUE(fleet_.engine(kPrefill).Load().has_work) << "perhaps this one can";
  CancelAndRun(first);
  CancelAndRun(second);
}

TEST_F(EngineTimeTest, AStepSaysWhatItComputesAndWhetherAnotherFollows) {
  Create();
  fleet_.Submit(kDecode, MakeSubmit(1, RandomTokens(70, 1), 1));
  for (const int32_t tokens : {64, 6}) {
    const Engine::StepResult step = fleet_.engine(kDecode).Step(fleet_.now_us());
    EXPECT_EQ(step.sequences, 1);
    EXPECT_EQ(step.tokens, tokens);
    EXPECT_TRUE(step.again);
  }
  EXPECT_FALSE(fleet_.engine(kDecode).Step(fleet_.now_us()).again);
}

TEST_F(EngineTimeTest, ATombstoneLiesUntilItsDeadline) {
  Create();
  const Submit submit = MakeSubmit(1, RandomTokens(40, 3), 5);
  fleet_.Cancel(kDecode, submit.attempt, /*time_left_us=*/1'000);
  fleet_.Advance(1'000);
  fleet_.engine(kDecode).Step(fleet_.now_us());
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineTimeTest, SoDoesOneOfAPromptThatWasCancelledBeforeItCame) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(40, 1), 5);
  submit.spec.time_left_us = 1'000;
  fleet_.DropMessages([](const std::string& kind) { return kind == "Submit"; });
  fleet_.Submit(kDecode, submit);
  CancelAndRun(submit);
  fleet_.Advance(1'000);
  for (const int worker : {kDecode, kPrefill}) fleet_.engine(worker).Step(fleet_.now_us());
  fleet_.DropMessages([](const std::string&) { return false; });
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.messages("Refused"), 0);
  EXPECT_THAT(fleet_.record(submit.attempt).tokens.at(0), SizeIs(5));
}

TEST_F(EngineTimeTest, WhatHasEndedIsRememberedUntilItsDeadline) {
  Create();
  Submit refused = MakeSubmit(1, RandomTokens(40, 3), 0);
  refused.spec.time_left_us = 1'000;
  fleet_.Submit(kDecode, refused);
  fleet_.Submit(kDecode, refused);
  Run();
  EXPECT_THAT(fleet_.record(refused.attempt).refused, SizeIs(1));
  fleet_.Advance(1'000);
  fleet_.engine(kDecode).Step(fleet_.now_us());
  fleet_.Submit(kDecode, refused);
  Run();
  EXPECT_THAT(fleet_.record(refused.attempt).refused, SizeIs(2));
  EXPECT_THAT(fleet_.record(refused.attempt).ended, IsEmpty());
}

TEST_F(EngineTimeTest, SoIsAPromptThatWasRefused) {
  Create();
  PrefillSubmit refused = PrefillSubmitOf(Disaggregated(1, RandomTokens(40, 1), 5));
  refused.num_blocks = 1;
  refused.spec.time_left_us = 1'000;
  const auto comes = [&] {
    fleet_.engine(kPrefill).OnDecodeMessage(100, refused, fleet_.now_us());
    return fleet_.messages("Refused");
  };
  EXPECT_EQ(comes(), 1);
  EXPECT_EQ(comes(), 1);
  fleet_.Advance(1'000);
  fleet_.engine(kPrefill).Step(fleet_.now_us());
  EXPECT_EQ(comes(), 2);
  Run();
}

TEST_F(EngineTimeTest, SoIsAPromptThatWasComputedForAPeer) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(40, 1), 5);
  submit.spec.time_left_us = 1'000'000;
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  const auto comes_again = [&] {
    fleet_.engine(kPrefill).OnDecodeMessage(100, PrefillSubmitOf(submit), fleet_.now_us());
    fleet_.engine(kPrefill).Step(fleet_.now_us());
    Run();
    return fleet_.messages("Start");
  };
  EXPECT_EQ(comes_again(), 1);
  fleet_.Advance(submit.spec.time_left_us);
  fleet_.engine(kPrefill).Step(fleet_.now_us());
  EXPECT_EQ(comes_again(), 2) << "its frames have left, too";
  fleet_.engine(kPrefill).OnDecodeMessage(
      100, PrefillCancel{.job = JobOf(submit), .time_left_us = 0}, fleet_.now_us());
}

TEST_F(EngineTimeTest, APromptWhoseTimeIsUpAtThePrefillWorkerEndsHereToo) {
  Create();
  fleet_.Pause(kPrefill, true);
  const Submit submit = Disaggregated(1, RandomTokens(40, 1), 5);
  fleet_.Submit(kDecode, submit);
  fleet_.engine(kDecode).OnPrefillMessage(
      fleet_.peer(kPrefill).worker,
      PrefillRefused{.job = JobOf(submit), .status = absl::DeadlineExceededError("late")},
      fleet_.now_us());
  fleet_.Pause(kPrefill, false);
  Run();
  EXPECT_THAT(fleet_.record(submit.attempt).refused, IsEmpty());
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(fleet_.record(submit.attempt).ended[0]));
}

TEST_F(EngineTimeTest, HowSoonAFullQueueHasRoomCountsEachThatLeaves) {
  EngineOptions options = SmallEngine();
  options.max_waiting_attempts = 4;
  options.max_batched_tokens = 20;  // Two leave with each step.
  fleet_.AddWorker({.engine = options});
  uint64_t counter = 0;
  const auto submit = [&] {
    ++counter;
    const Submit submitted = MakeSubmit(counter, RandomTokens(10, counter), 1);
    fleet_.Submit(kDecode, submitted);
    return submitted.attempt;
  };
  for (int i = 0; i < 4; ++i) submit();
  for (int i = 0; i < 30; ++i) {
    fleet_.Advance(400'000);
    fleet_.engine(kDecode).Step(fleet_.now_us());
    for (int left = 0; left < 2; ++left) submit();
  }
  EXPECT_NEAR(static_cast<double>(fleet_.record(submit()).retry_after_us), 200'000, 2'000);
  Run();
}

TEST_F(EngineTimeTest, WhoLetsNobodyInIsAskedAgainEverLater) {
  EngineOptions options = SmallEngine();
  options.max_waiting_attempts = 1;
  options.max_sequences = 1;
  fleet_.AddWorker({.engine = options});
  uint64_t counter = 0;
  const auto submit = [&] {
    ++counter;
    const Submit submitted = MakeSubmit(counter, RandomTokens(10, counter), 20);
    fleet_.Submit(kDecode, submitted);
    return submitted.attempt;
  };
  for (int i = 0; i < 2; ++i) {  // One runs, the other waits for as long.
    submit();
    fleet_.engine(kDecode).Step(fleet_.now_us());
  }
  for (const int64_t since_us : {300'000, 600'000, 900'000}) {
    fleet_.Advance(300'000);
    EXPECT_NEAR(static_cast<double>(fleet_.record(submit()).retry_after_us), since_us, 2'000);
  }
  Run();
}

TEST_F(EngineTimeTest, ADeadlineMayBeAsFarAwayAsItLikes) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(40, 1), 5);
  submit.spec.time_left_us = INT64_MAX;
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(kPrefill), 40);
}

}  // namespace
}  // namespace tandem
