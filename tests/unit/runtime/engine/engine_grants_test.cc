// Who gets blocks while there are too few: grants that are held, prefixes that are given up, and
// blocks that a transport keeps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/runtime/engine/engine_transfer_fixture.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

class EngineGrantsTest : public EngineTransferTest {
 protected:
  // The prefill worker's blocks stay with the transport until ReleaseFrames.
  void CancelWithFramesOut(const Submit& submit) {
    fleet_.HoldFrames();
    fleet_.Submit(kDecode, submit);
    Run();
    fleet_.Cancel(kDecode, submit.attempt);
  }
  // Each worker computes the other one's prompt.
  void PrefillForEachOther(Submit here, Submit there) {
    here.prefill = fleet_.peer(kPrefill);
    there.prefill = fleet_.peer(kDecode);
    here.disaggregate_from_tokens = there.disaggregate_from_tokens = 1;
    fleet_.Submit(kDecode, here);
    fleet_.Submit(kPrefill, there);
    Run();
  }
};

TEST_F(EngineGrantsTest, APromptElsewhereIsPartOfTheLoad) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(200, 3), 20);
  fleet_.Pause(kPrefill, true);
  fleet_.Submit(kDecode, submit);
  while (fleet_.RunOne()) {
  }
  EXPECT_EQ(fleet_.engine(kDecode).Load().waiting_sequences, 1);
  EXPECT_FALSE(fleet_.engine(kDecode).Load().has_work) << "all that it can do is wait";
  EXPECT_EQ(fleet_.engine(kPrefill).Load().waiting_prompt_tokens, 200);
  fleet_.Pause(kPrefill, false);
  Run();
  EXPECT_EQ(fleet_.engine(kDecode).Load().waiting_sequences, 0);
}

TEST_F(EngineGrantsTest, PromptsElsewhereHavePlacesInTheQueue) {
  EngineOptions options = SmallEngine();
  options.max_waiting_attempts = 2;
  fleet_.AddWorker({.engine = options});
  fleet_.AddWorker({.engine = SmallEngine()});
  fleet_.Pause(kPrefill, true);
  for (const uint64_t i : {1, 2, 3}) {
    fleet_.Submit(kDecode, Disaggregated(i, RandomTokens(100, i), 5));
  }
  const auto refused = [&](uint64_t i) {
    return fleet_.record(MakeSubmit(i, {}, 5).attempt).refused;
  };
  EXPECT_THAT(refused(2), testing::IsEmpty());
  ASSERT_THAT(refused(3), SizeIs(1));
  EXPECT_TRUE(absl::IsResourceExhausted(refused(3)[0]));
  fleet_.Pause(kPrefill, false);
  Run();
}

// It gives its blocks back before anybody else wants them.
TEST_F(EngineGrantsTest, APromptOfWhichOneTokenIsWantedTakesBlocksThatAreKeptForOthers) {
  Create(/*decode_blocks=*/64, /*prefill_blocks=*/8);
  fleet_.SetFastNetwork(true);
  std::vector<Submit> running;
  for (uint64_t i = 1; i <= 3; ++i) {  // 6 blocks; 2 are left for 3 that run.
    running.push_back(MakeSubmit(i, RandomTokens(17, i), 15));
    fleet_.Submit(kPrefill, running.back());
  }
  for (const Submit& submit : running) RunUntilFirstToken(submit);
  const Submit brief = Disaggregated(4, RandomTokens(16, 4), 1);
  fleet_.Submit(kDecode, brief);
  RunUntilFirstToken(brief);
  for (const Submit& submit : running) {
    EXPECT_THAT(fleet_.record(submit.attempt).finish, testing::IsEmpty());
  }
  Run();
}

TEST_F(EngineGrantsTest, APromptIsChargedWhileItWaitsAndNoLonger) {
  Create(/*decode_blocks=*/16, /*prefill_blocks=*/64);
  const auto submit = [&](const Submit& what) {
    auto charge = std::make_shared<int>();
    const std::weak_ptr<int> watched = charge;
    fleet_.Submit(kDecode, what, EngineFleet::kRouter, std::move(charge));
    return watched;
  };
  const Submit running = MakeSubmit(1, RandomTokens(225, 1), 15);  // All blocks but one.
  const std::weak_ptr<int> of_running = submit(running);
  RunUntilFirstToken(running);
  EXPECT_TRUE(of_running.expired());
  const Submit waiting = MakeSubmit(2, RandomTokens(150, 2), 5);
  const Submit elsewhere = Disaggregated(3, RandomTokens(40, 3), 20);
  const Submit cancelled = MakeSubmit(4, RandomTokens(150, 4), 5);
  const std::weak_ptr<int> of_waiting = submit(waiting), of_elsewhere = submit(elsewhere),
                           of_cancelled = submit(cancelled);
  fleet_.RunUntil([&] { return fleet_.messages("Start") == 1; });
  EXPECT_FALSE(of_waiting.expired() || of_elsewhere.expired() || of_cancelled.expired());
  fleet_.Cancel(kDecode, cancelled.attempt);
  EXPECT_TRUE(of_cancelled.expired());
  fleet_.RunUntil([&] { return fleet_.messages("Committed") == 1; });
  EXPECT_TRUE(of_waiting.expired() && of_elsewhere.expired()) << "they are in the batch";
  EXPECT_THAT(fleet_.record(elsewhere.attempt).finish, testing::IsEmpty());
  Run();
}

TEST_F(EngineGrantsTest, GrantsAreHeldUntilThereIsRoomAndAllArriveInTheEnd) {
  Create(/*decode_blocks=*/16, /*prefill_blocks=*/64);
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 8; ++i) {
    submits.push_back(Disaggregated(i, RandomTokens(static_cast<int32_t>(20 * i), i), 30));
    fleet_.Submit(kDecode, submits.back());
  }
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineGrantsTest, CachedPrefixesOfWaitingPromptsCannotJamThePool) {
  Create(/*decode_blocks=*/16, /*prefill_blocks=*/64);
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 1; i <= 3; ++i) {
    prompts.push_back(RandomTokens(80, i));
    fleet_.Submit(kDecode, MakeSubmit(i, prompts.back(), 1));
    Run();
  }
  std::vector<Submit> submits;
  for (uint64_t i = 0; i < 3; ++i) {  // 15 of 16 blocks are pinned hits, none can be granted.
    std::vector<int32_t> longer = prompts[i];
    for (int32_t t : RandomTokens(60, 100 + i)) longer.push_back(t);
    submits.push_back(Disaggregated(4 + i, longer, 5));
    fleet_.Submit(kDecode, submits.back());
  }
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_THAT(fleet_.prefill_cancels(), ElementsAre(JobOf(submits[2]))) << "the youngest yields";
}

// Blocks that a transport still writes to are on their way back: nobody has to give up for them.
TEST_F(EngineGrantsTest, WhatIsInQuarantineIsWaitedFor) {
  const std::vector<int32_t> prefix = RandomTokens(80, 1);
  std::vector<int32_t> longer = prefix;
  for (int32_t t : RandomTokens(60, 100)) longer.push_back(t);
  for (int point = 0; point < 60; ++point) {
    SCOPED_TRACE(testing::Message() << "point " << point);
    EngineFleet fleet;
    Create(&fleet, /*decode_blocks=*/16, /*prefill_blocks=*/64);
    fleet.Submit(kDecode, MakeSubmit(1, prefix, 1));
    ASSERT_TRUE(fleet.RunUntilQuiet());
    const Submit cancelled = Disaggregated(fleet, 2, RandomTokens(160, 2), 5);
    const Submit waiting = Disaggregated(fleet, 3, longer, 5);
    fleet.Submit(kDecode, cancelled);
    fleet.Submit(kDecode, waiting);
    for (int i = 0; i < point; ++i) ASSERT_TRUE(fleet.RunOne());
    fleet.Cancel(kDecode, cancelled.attempt);
    ASSERT_TRUE(fleet.RunUntilQuiet());
    EXPECT_EQ(fleet.CheckFinished(waiting), "");
    EXPECT_EQ(fleet.messages("Cancel"), 1);
    ExpectQuiet(fleet);
  }
}

TEST_F(EngineGrantsTest, WorkersThatPrefillForEachOtherDoNotWaitForEachOtherForEver) {
  Create(/*decode_blocks=*/32, /*prefill_blocks=*/32);
  const Submit here = MakeSubmit(1, RandomTokens(320, 1), 5);
  const Submit there = MakeSubmit(2, RandomTokens(320, 2), 5);
  PrefillForEachOther(here, there);
  EXPECT_EQ(fleet_.messages("Grant"), 0) << "each holds 20 of 32 blocks for the other";
  for (int64_t us = 0; us <= LivenessTimes().lease_us; us += LivenessTimes().renew_us) {
    fleet_.Advance(LivenessTimes().renew_us);
    fleet_.Renew();
    Run();
  }
  EXPECT_EQ(fleet_.CheckFinished(here), "");
  EXPECT_EQ(fleet_.CheckFinished(there), "");
}

TEST_F(EngineGrantsTest, WhileAPeersPromptHoldsTheBlocksNoPrefixIsGivenUpBeforeItsTime) {
  Create(/*decode_blocks=*/32, /*prefill_blocks=*/32);
  const std::vector<int32_t> prompt = RandomTokens(320, 1);
  fleet_.Submit(kDecode, MakeSubmit(1, {prompt.begin(), prompt.begin() + 80}, 1));
  Run();
  const Submit here = MakeSubmit(2, prompt, 5);
  const Submit there = MakeSubmit(3, RandomTokens(320, 2), 5);
  PrefillForEachOther(here, there);
  EXPECT_EQ(fleet_.messages("Start"), 2);
  EXPECT_EQ(fleet_.messages("Grant"), 0);
  EXPECT_THAT(fleet_.prefill_cancels(), testing::IsEmpty());
  for (const Submit& submit : {here, there}) {
    fleet_.Cancel(kDecode, submit.attempt);
    fleet_.Cancel(kPrefill, submit.attempt);
  }
  Run();
}

TEST_F(EngineGrantsTest, HeldGrantsGoOutInOrderOfArrivalWhicheverStartedFirst) {
  fleet_.AddWorker({.engine = SmallEngine(16)});
  fleet_.AddWorker({.engine = SmallEngine()});
  const int other_prefill = fleet_.AddWorker({.engine = SmallEngine()});
  const Submit running = MakeSubmit(1, RandomTokens(150, 1), 80);
  const Submit older = Disaggregated(2, RandomTokens(120, 2), 20);
  Submit younger = Disaggregated(3, RandomTokens(120, 3), 20);
  younger.prefill = fleet_.peer(other_prefill);
  fleet_.Pause(kPrefill, true);
  for (const Submit& submit : {running, older, younger}) fleet_.Submit(kDecode, submit);
  RunUntilFirstToken(younger);
  fleet_.Pause(kPrefill, false);
  RunUntilFirstToken(older);
  EXPECT_EQ(fleet_.messages("Grant"), 0);
  fleet_.Cancel(kDecode, running.attempt);
  fleet_.RunUntil([&] { return fleet_.messages("Committed") == 1; });
  fleet_.RunUntil([&] { return fleet_.record(older.attempt).tokens.at(0).size() > 1; });
  EXPECT_THAT(fleet_.record(younger.attempt).tokens.at(0), SizeIs(1));
  Run();
  EXPECT_EQ(fleet_.CheckFinished(older), "");
  EXPECT_EQ(fleet_.CheckFinished(younger), "");
}

TEST_F(EngineGrantsTest, QuarantineThatIsTooLargeForTooLongAsksForAnotherProcess) {
  Create(/*decode_blocks=*/64, /*prefill_blocks=*/12);
  Engine& prefill = fleet_.engine(kPrefill);
  const Submit submit = Disaggregated(1, RandomTokens(150, 1), 5);
  CancelWithFramesOut(submit);
  Run();
  EXPECT_EQ(prefill.Load().blocks.quarantined, 10);
  EXPECT_FALSE(prefill.quarantine_is_stuck());
  const int64_t wakeup_us = prefill.Step(fleet_.now_us()).next_wakeup_us;
  EXPECT_GT(wakeup_us, fleet_.now_us());
  EXPECT_LE(wakeup_us, fleet_.now_us() + LivenessTimes().quarantine_us);
  fleet_.Advance(LivenessTimes().quarantine_us);
  Run();
  EXPECT_TRUE(prefill.quarantine_is_stuck());
  fleet_.ReleaseFrames();
  Run();
  EXPECT_FALSE(prefill.quarantine_is_stuck());
}

TEST_F(EngineGrantsTest, AsMuchQuarantineAsIsAllowedMayLast) {
  Create(/*decode_blocks=*/64, /*prefill_blocks=*/20);
  CancelWithFramesOut(Disaggregated(1, RandomTokens(150, 1), 5));
  Run();
  EXPECT_EQ(fleet_.engine(kPrefill).Load().blocks.quarantined, 10) << "half of the pool";
  fleet_.Advance(2 * LivenessTimes().quarantine_us);
  Run();
  EXPECT_FALSE(fleet_.engine(kPrefill).quarantine_is_stuck());
  fleet_.ReleaseFrames();
  Run();
}

TEST_F(EngineGrantsTest, ADrainedWorkerHasNoBlocksInQuarantine) {
  Create();
  CancelWithFramesOut(Disaggregated(1, RandomTokens(150, 1), 5));
  Run();
  fleet_.engine(kPrefill).Drain(fleet_.now_us());
  EXPECT_FALSE(fleet_.engine(kPrefill).drained()) << "a transport still reads its memory";
  fleet_.ReleaseFrames();
  Run();
  EXPECT_TRUE(fleet_.engine(kPrefill).drained());
}

TEST_F(EngineGrantsTest, QuarantineThatIsInTheWayForTooLongAsksForAnotherProcess) {
  Create(/*decode_blocks=*/64, /*prefill_blocks=*/12);
  Engine& prefill = fleet_.engine(kPrefill);
  const Submit cancelled = Disaggregated(1, RandomTokens(70, 1), 5);
  CancelWithFramesOut(cancelled);
  fleet_.Advance(2 * LivenessTimes().quarantine_us);
  Run();
  EXPECT_EQ(prefill.Load().blocks.quarantined, 5);
  EXPECT_FALSE(prefill.quarantine_is_stuck()) << "nobody wants them";

  const Submit waiting = MakeSubmit(2, RandomTokens(150, 2), 5);
  fleet_.Submit(kPrefill, waiting);
  Run();
  EXPECT_FALSE(prefill.quarantine_is_stuck());
  fleet_.Advance(LivenessTimes().quarantine_us);
  Run();
  EXPECT_TRUE(prefill.quarantine_is_stuck());
  fleet_.ReleaseFrames();
  Run();
  EXPECT_EQ(fleet_.CheckFinished(waiting), "");
}

TEST_F(EngineGrantsTest, AGrantDoesNotPassAnOlderPromptThatLacksBlocks) {
  Create(/*decode_blocks=*/16, /*prefill_blocks=*/64);
  const Submit running = MakeSubmit(1, RandomTokens(150, 1), 60);
  DecodeUntilFirstToken(running);
  // Computed whole for the other worker: ten blocks or none.
  Submit whole = MakeSubmit(2, RandomTokens(150, 2), 5);
  whole.prefill = fleet_.peer(kDecode);
  whole.disaggregate_from_tokens = 1;
  fleet_.Submit(kPrefill, whole);
  fleet_.RunUntil([&] { return fleet_.engine(kDecode).Load().waiting_sequences == 1; });
  const Submit held = Disaggregated(3, RandomTokens(20, 3), 5);
  DecodeUntilFirstToken(held);
  EXPECT_EQ(fleet_.messages("Grant"), 0);
  fleet_.Cancel(kDecode, running.attempt);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(whole), "");
  EXPECT_EQ(fleet_.CheckFinished(held), "");
}

TEST_F(EngineGrantsTest, AGrantLeavesABlockForEverybodyWhoRuns) {
  Create(/*decode_blocks=*/16, /*prefill_blocks=*/64);
  const Submit running = MakeSubmit(1, RandomTokens(145, 1), 30);
  DecodeUntilFirstToken(running);
  const Submit held = Disaggregated(2, RandomTokens(90, 2), 5);  // Six blocks; six are free.
  DecodeUntilFirstToken(held);
  EXPECT_EQ(fleet_.engine(kDecode).Load().blocks.free, 6);
  EXPECT_EQ(fleet_.messages("Grant"), 0);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(running), "");
  EXPECT_EQ(fleet_.CheckFinished(held), "");
}

TEST_F(EngineGrantsTest, YoungerPromptsLeaveTheBlocksThatAHeldGrantWaitsFor) {
  Create(/*decode_blocks=*/16, /*prefill_blocks=*/64);
  const Submit running = MakeSubmit(1, RandomTokens(145, 1), 60);
  DecodeUntilFirstToken(running);
  const Submit held = Disaggregated(2, RandomTokens(90, 2), 5);
  DecodeUntilFirstToken(held);
  const Submit younger = MakeSubmit(3, RandomTokens(20, 3), 5);
  fleet_.Submit(kDecode, younger);
  fleet_.RunUntil([&] { return fleet_.record(running.attempt).tokens.at(0).size() >= 40; });
  EXPECT_TRUE(fleet_.record(younger.attempt).tokens.empty());
  Run();
  for (const Submit& submit : {running, held, younger}) {
    EXPECT_EQ(fleet_.CheckFinished(submit), "");
  }
}

TEST_F(EngineGrantsTest, WhoGivesItsBlocksToAnOlderPromptThatStartsElsewhereIsCounted) {
  Create(/*decode_blocks=*/16, /*prefill_blocks=*/64);
  const Submit older = Disaggregated(1, RandomTokens(90, 1), 5);
  fleet_.Pause(kPrefill, true);
  fleet_.Submit(kDecode, older);
  const Submit younger = MakeSubmit(2, RandomTokens(100, 2), 20, /*num_choices=*/4);
  DecodeUntilFirstToken(younger);
  fleet_.Pause(kPrefill, false);
  Run();
  EXPECT_EQ(fleet_.preemptions(), 2);
  for (const Submit& submit : {older, younger}) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineGrantsTest, WhoeverMakesRoomBetweenTwoStepsIsCounted) {
  Create(/*decode_blocks=*/40, /*prefill_blocks=*/64);
  fleet_.Pause(kPrefill, true);
  const Submit first = Disaggregated(1, RandomTokens(60, 1), 5);
  const Submit second = Disaggregated(2, RandomTokens(60, 2), 5);
  for (const Submit& older : {first, second}) fleet_.Submit(kDecode, older);
  const Submit younger = MakeSubmit(3, RandomTokens(144, 3), 60, /*num_choices=*/10);
  DecodeUntilFirstToken(younger);
  fleet_.RunUntil([&] { return fleet_.record(younger.attempt).tokens.at(0).size() >= 34; });
  const int32_t running = fleet_.engine(kDecode).Load().running_sequences;
  fleet_.Pause(kDecode, true);  // It hears of both starts before its next step.
  fleet_.Pause(kPrefill, false);
  Run();
  ASSERT_EQ(fleet_.messages("Grant"), 2);
  const int32_t made_room = running - fleet_.engine(kDecode).Load().running_sequences;
  EXPECT_GE(made_room, 2);
  EXPECT_GE(fleet_.BeginStep(kDecode).preempted, made_room);
  fleet_.FinishStep(kDecode);
  fleet_.Pause(kDecode, false);
  Run();
  for (const Submit& submit : {first, second, younger}) {
    EXPECT_EQ(fleet_.CheckFinished(submit), "");
  }
}

TEST_F(EngineGrantsTest, HeldGrantGoesOutOnceWhatWasAheadOfItIsGone) {
  Create(/*decode_blocks=*/16, /*prefill_blocks=*/64);
  const Submit running = MakeSubmit(1, RandomTokens(150, 1), 80);
  const Submit blocked = MakeSubmit(2, RandomTokens(150, 2), 80);
  const Submit held = Disaggregated(3, RandomTokens(150, 3), 5);
  fleet_.Submit(kDecode, running);
  fleet_.Submit(kDecode, blocked);
  DecodeUntilFirstToken(held);
  EXPECT_EQ(fleet_.messages("Grant"), 0);
  fleet_.Cancel(kDecode, running.attempt);
  fleet_.Cancel(kDecode, blocked.attempt);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(held), "");
}

TEST_F(EngineGrantsTest, APromptMayTakeAllOfAPrefillWorkersPool) {
  Create(/*decode_blocks=*/64, /*prefill_blocks=*/4);
  const Submit fits = Disaggregated(1, RandomTokens(4 * 16, 1), 5);
  fleet_.Submit(kDecode, fits);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(fits), "");
  EXPECT_EQ(computed(kPrefill), 64);
  const Submit longer = Disaggregated(2, RandomTokens(4 * 16 + 1, 2), 5);
  fleet_.Submit(kDecode, longer);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(longer), "");
  EXPECT_EQ(computed(kPrefill), 64) << "it is computed here";
}

}  // namespace
}  // namespace tandem
