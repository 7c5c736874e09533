// A decode worker and a prefill worker back to back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/runtime/engine/engine_transfer_fixture.h"

namespace tandem {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

TEST_F(EngineTransferTest, APrefillWorkerComputesWhatFitsItsContextWithOneTokenMore) {
  fleet_.AddWorker({.engine = SmallEngine()});
  EngineOptions prefill = SmallEngine();
  prefill.max_model_tokens = 64;
  fleet_.AddWorker({.engine = prefill});
  const Submit longer = Disaggregated(1, RandomTokens(64, 1), 5);
  fleet_.Submit(kDecode, longer);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(longer), "");
  EXPECT_EQ(computed(kPrefill), 0) << "it is computed here";
  const Submit fits = Disaggregated(2, RandomTokens(63, 2), 5);
  fleet_.Submit(kDecode, fits);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(fits), "");
  EXPECT_EQ(computed(kPrefill), 63);
}

TEST_F(EngineTransferTest, AFullPrefillWorkerIsToldApartFromAFullDecodeWorker) {
  fleet_.AddWorker({.engine = SmallEngine()});
  EngineOptions prefill = SmallEngine();
  prefill.max_waiting_attempts = 1;
  fleet_.AddWorker({.engine = prefill});
  fleet_.Pause(kPrefill, true);
  const Submit waits = Disaggregated(1, RandomTokens(40, 1), 5);
  const Submit refused = Disaggregated(2, RandomTokens(40, 2), 5);
  fleet_.Submit(kDecode, waits);
  fleet_.Submit(kDecode, refused);
  Run();
  ASSERT_EQ(fleet_.record(refused.attempt).refused.size(), 1u);
  EXPECT_EQ(fleet_.record(refused.attempt).refused[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(fleet_.record(refused.attempt).by_prefill);
  EXPECT_EQ(fleet_.record(refused.attempt).retry_after_us, 10'000);
  fleet_.Pause(kPrefill, false);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(waits), "");
}

TEST_F(EngineTransferTest, AStepThatFailsAtThePrefillWorkerIsLaidToIt) {
  Create();
  fleet_.executor(kPrefill).FailNextStep();
  const Submit submit = Disaggregated(1, RandomTokens(40, 1), 5);
  fleet_.Submit(kDecode, submit);
  Run();
  ASSERT_EQ(fleet_.record(submit.attempt).ended.size(), 1u);
  EXPECT_EQ(fleet_.record(submit.attempt).ended[0],
            absl::AbortedError("a step failed: it was told to fail"));
  EXPECT_TRUE(fleet_.record(submit.attempt).by_prefill);
  fleet_.executor(kDecode).FailNextStep();
  const Submit local = MakeSubmit(2, RandomTokens(40, 2), 5);
  fleet_.Submit(kDecode, local);
  Run();
  ASSERT_EQ(fleet_.record(local.attempt).ended.size(), 1u);
  EXPECT_FALSE(fleet_.record(local.attempt).by_prefill);
}

TEST_F(EngineTransferTest, PromptIsComputedThereAndTokensAreThoseOfOneWorker) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(200, 3), 20);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(kPrefill), 200);
  EXPECT_EQ(computed(kDecode), 19);
  EXPECT_EQ(fleet_.frames_delivered(), 13);  // 12 full blocks and the tail.
  EXPECT_EQ(fleet_.messages("Committed"), 1);
  EXPECT_EQ(fleet_.messages("Cancel"), 0);
}

TEST_F(EngineTransferTest, FirstTokenIsForwardedBeforeTheBlocksAreThere) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(200, 3), 20);
  fleet_.DropMessages([](const std::string& kind) { return kind == "Grant"; });
  fleet_.Submit(kDecode, submit);
  fleet_.RunUntilQuiet(300);
  EXPECT_THAT(fleet_.record(submit.attempt).tokens.at(0), SizeIs(1));
  EXPECT_EQ(fleet_.frames_delivered(), 0);
  fleet_.Cancel(kDecode, submit.attempt);
  Run();
}

TEST_F(EngineTransferTest, ABlockThatIsHalfComputedDoesNotTravel) {
  fleet_.AddWorker({.engine = SmallEngine()});
  EngineOptions options = SmallEngine();
  options.max_batched_tokens = 50;  // Chunks end in the middle of a block.
  fleet_.AddWorker({.engine = options});
  const Submit submit = Disaggregated(1, RandomTokens(200, 3), 20);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.messages("Resend"), 0);
  EXPECT_EQ(fleet_.messages("Committed"), 1);
}

TEST_F(EngineTransferTest, BlocksTravelWhileLaterChunksCompute) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(500, 3), 10);
  DecodeUntilFirstToken(submit);
  EXPECT_GT(fleet_.frames_delivered(), 0);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineTransferTest, OnlyTheMissingBlocksTravel) {
  Create();
  const std::vector<int32_t> prompt = RandomTokens(200, 3);
  const std::vector<int32_t> start(prompt.begin(), prompt.begin() + 100);
  fleet_.Submit(kDecode, MakeSubmit(1, start, 2));  // Here.
  Run();
  const Submit submit = Disaggregated(2, prompt, 10);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.frames_delivered(), 13 - 6);
  EXPECT_EQ(fleet_.executor(kPrefill).checksummed_blocks(), 13 - 6);
  EXPECT_EQ(computed(kPrefill), 200);
  EXPECT_EQ(fleet_.record(submit.attempt).prompts[0].cached_tokens, 96);

  const Submit again = Disaggregated(3, prompt, 10);  // Only the tail is missing.
  fleet_.Submit(kDecode, again);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(again), "");
  EXPECT_EQ(fleet_.frames_delivered(), 13 - 6 + 1);
  EXPECT_EQ(computed(kPrefill), 200 + 8) << "the prefill worker has a prefix cache, too";
}

TEST_F(EngineTransferTest, FullyCachedPromptStaysHere) {
  Create();
  const std::vector<int32_t> prompt = RandomTokens(64, 3);
  fleet_.Submit(kDecode, MakeSubmit(1, prompt, 2));
  Run();
  const Submit submit = Disaggregated(2, prompt, 5);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.messages("Submit"), 0);
}

TEST_F(EngineTransferTest, ShortPromptsStayBelowTheThreshold) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(99, 3), 5);
  submit.disaggregate_from_tokens = 100;
  fleet_.Submit(kDecode, submit);
  Submit longer = Disaggregated(2, RandomTokens(100, 4), 5);
  longer.disaggregate_from_tokens = 100;
  fleet_.Submit(kDecode, longer);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.CheckFinished(longer), "");
  EXPECT_EQ(fleet_.messages("Submit"), 1);
}

TEST_F(EngineTransferTest, AWorkerComputesItselfWhatItIsToldToSendToItself) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(90, 3), 5);
  submit.prefill = fleet_.peer(kDecode);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.messages("Submit"), 0);
}

TEST_F(EngineTransferTest, ChoicesAreDrawnThereAndForkedHere) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(90, 3), 12, /*num_choices=*/4);
  submit.spec.sampling.num_logprobs = 2;
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.frames_delivered(), 6);
  EXPECT_EQ(computed(kDecode), 4 * 11);
  EXPECT_EQ(fleet_.executor(kDecode).copied_blocks(), 3);
}

TEST_F(EngineTransferTest, PromptLogprobsComeWithTheFirstToken) {
  Create();
  const std::vector<int32_t> prompt = RandomTokens(90, 3);
  fleet_.Submit(kDecode, Disaggregated(1, prompt, 3));
  Run();
  Submit submit = Disaggregated(2, prompt, 12);
  submit.spec.sampling.num_prompt_logprobs = 1;
  submit.disaggregate_from_tokens = 90;  // All is to be computed, whatever is cached.
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(kPrefill), 180);
  EXPECT_EQ(fleet_.frames_delivered(), 12);
}

TEST_F(EngineTransferTest, NothingTravelsWhereOneTokenIsAll) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(90, 3), 1, /*num_choices=*/2);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.messages("Grant"), 0);
  EXPECT_EQ(fleet_.frames_delivered(), 0);
}

TEST_F(EngineTransferTest, FirstTokenThatStopsEndsTheTransferOnBothSides) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(300, 3), 10);
  submit.spec.sampling.stop_token_ids = {
      SimulatedModel().Generate(submit.spec.token_ids, 0, submit.spec.sampling)[0].token};
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_THAT(fleet_.record(submit.attempt).tokens.at(0), SizeIs(1));
  EXPECT_EQ(fleet_.record(submit.attempt).finish.at(0), FinishReason::kStop);
}

TEST_F(EngineTransferTest, OneChoiceThatStopsAtOnceLeavesTheOthersRunning) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(60, 3), 10, 3);
  submit.spec.sampling.stop_token_ids = {
      SimulatedModel().Generate(submit.spec.token_ids, 1, submit.spec.sampling)[0].token};
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_THAT(fleet_.record(submit.attempt).tokens.at(1), SizeIs(1));
}

TEST_F(EngineTransferTest, ResumedStreamIsPrefilledElsewhere) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(90, 3), 30);
  submit.spec.sampling.num_prompt_logprobs = 1;
  const auto tokens = SimulatedModel().Generate(submit.spec.token_ids, 0, submit.spec.sampling);
  for (size_t i = 0; i < 17; ++i) submit.spec.token_ids.push_back(tokens[i].token);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(kPrefill), 107);
}

TEST_F(EngineTransferTest, DecodesGoOnWhilePromptsArrive) {
  Create();
  const Submit running = MakeSubmit(1, RandomTokens(40, 1), 200);
  fleet_.Submit(kDecode, running);
  std::vector<Submit> submits;
  for (uint64_t i = 2; i < 8; ++i) {
    submits.push_back(Disaggregated(i, RandomTokens(static_cast<int32_t>(40 * i), i), 20));
    fleet_.Submit(kDecode, submits.back());
  }
  Run();
  EXPECT_EQ(fleet_.CheckFinished(running), "");
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_GT(fleet_.executor(kDecode).largest_batch(), 2);
}

TEST_F(EngineTransferTest, PrefillWorkerStartsAPromptOnlyWhenItCanHoldItWhole) {
  Create(/*decode_blocks=*/64, /*prefill_blocks=*/12);
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 5; ++i) {
    submits.push_back(Disaggregated(i, RandomTokens(150, i), 5));
    fleet_.Submit(kDecode, submits.back());
  }
  const Submit impossible = Disaggregated(9, RandomTokens(200, 9), 5);
  fleet_.Submit(kDecode, impossible);
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.CheckFinished(impossible), "") << "computed here";
  EXPECT_EQ(computed(kPrefill), 5 * 150) << "a started prompt is never preempted";
}

TEST_F(EngineTransferTest, CorruptBlockIsSentAgain) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(90, 3), 12);
  fleet_.CorruptFrames(2);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.messages("Resend"), 2);
  EXPECT_EQ(fleet_.frames_delivered(), 8);
}

TEST_F(EngineTransferTest, PromptIsComputedHereWhenItsBlocksKeepArrivingCorrupt) {
  Create();
  for (int32_t choices : {1, 3}) {
    const Submit submit =
        Disaggregated(static_cast<uint64_t>(choices), RandomTokens(40, 3), 12, choices);
    fleet_.CorruptFrames(1'000'000);
    fleet_.Submit(kDecode, submit);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(submit), "");
    EXPECT_EQ(fleet_.messages("Committed"), 0);
  }
}

TEST_F(EngineTransferTest, APromptThatIsComputedHereIsScoredOnce) {
  Create();
  std::vector<int64_t> computed_after = {0};
  for (const bool scored : {false, true}) {
    const uint64_t counter = scored ? 2 : 1;
    Submit submit = Disaggregated(counter, RandomTokens(40, counter), 12, /*num_choices=*/3);
    if (scored) submit.spec.sampling.num_prompt_logprobs = 1;
    fleet_.CorruptFrames(1'000'000);
    fleet_.Submit(kDecode, submit);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(submit), "");
    computed_after.push_back(computed(kDecode));
  }
  EXPECT_EQ(computed_after[2] - computed_after[1], computed_after[1]);
}

// At every point of a transfer: what the other requests deliver is untouched, the attempt ends
// once, and every block comes back on both sides.
TEST_F(EngineTransferTest, CancelAtEveryPointEndsOnceAndDisturbsNobody) {
  int point = 0;
  for (bool running = true; running; ++point) {
    ASSERT_LT(point, 2'000);
    SCOPED_TRACE(testing::Message() << "point " << point);
    EngineFleet fleet;
    Create(&fleet, /*decode_blocks=*/24, /*prefill_blocks=*/24);
    const Submit submit = Disaggregated(fleet, 1, RandomTokens(150, 1), 6, 2);
    const Submit other = Disaggregated(fleet, 2, RandomTokens(70, 2), 6);
    fleet.Submit(kDecode, submit);
    fleet.Submit(kDecode, other);
    for (int i = 0; i < point; ++i) {
      ASSERT_TRUE(fleet.RunOne());
      ASSERT_EQ(fleet.Audit(), "");
    }
    running = fleet.record(submit.attempt).finish.size() < 2;
    fleet.Cancel(kDecode, submit.attempt);
    fleet.Cancel(kDecode, submit.attempt);
    // Reuses what has come free while frames of the cancelled transfer are still on the way.
    const Submit next = Disaggregated(fleet, 3, RandomTokens(160, 3), 6);
    fleet.Submit(kDecode, next);
    ASSERT_TRUE(fleet.RunUntilQuiet());
    const AttemptRecord& record = fleet.record(submit.attempt);
    EXPECT_FALSE(record.token_after_end);
    EXPECT_FALSE(record.position_gap);
    EXPECT_EQ(record.ended.size() + record.refused.size(), running ? 1u : 0u);
    EXPECT_EQ(fleet.CheckFinished(other), "");
    EXPECT_EQ(fleet.CheckFinished(next), "");
    ExpectQuiet(fleet);
    if (HasFailure()) return;
  }
  EXPECT_GT(point, 40) << "the transfer was over before it could be interrupted";
}

TEST_F(EngineTransferTest, BothSidesCleanUpWhenTheirSessionIsLostAtAnyPoint) {
  int point = 0;
  for (bool running = true; running; ++point) {
    ASSERT_LT(point, 2'000);
    SCOPED_TRACE(testing::Message() << "point " << point);
    EngineFleet fleet;
    Create(&fleet, 24, 24);
    const Submit submit = Disaggregated(fleet, 1, RandomTokens(150, 1), 6, 2);
    fleet.Submit(kDecode, submit);
    for (int i = 0; i < point; ++i) ASSERT_TRUE(fleet.RunOne());
    running = fleet.record(submit.attempt).finish.size() < 2;
    fleet.BreakSession(kDecode, kPrefill);
    const Submit next = Disaggregated(fleet, 3, RandomTokens(160, 3), 6);
    fleet.Submit(kDecode, next);
    ASSERT_TRUE(fleet.RunUntilQuiet());
    const AttemptRecord& record = fleet.record(submit.attempt);
    EXPECT_FALSE(record.token_after_end);
    // Committed attempts no longer need the peer.
    if (!record.ended.empty()) {
      EXPECT_TRUE(absl::IsUnavailable(record.ended[0]));
      EXPECT_THAT(record.ended, SizeIs(1));
      EXPECT_LT(record.finish.size(), 2u);
    } else {
      EXPECT_EQ(fleet.CheckFinished(submit), "");
    }
    EXPECT_EQ(fleet.CheckFinished(next), "");
    ExpectQuiet(fleet);
    if (HasFailure()) return;
  }
  EXPECT_GT(point, 20);
}

TEST_F(EngineTransferTest, LeaseThatIsNotRenewedFreesThePrefillSide) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 10);
  fleet_.DropMessages([](const std::string& kind) { return kind == "Grant" || kind == "Refused"; });
  fleet_.Submit(kDecode, submit);
  for (int i = 0; i < 100; ++i) fleet_.RunOne();
  EXPECT_GT(fleet_.engine(kPrefill).Load().blocks.held, 0);
  fleet_.Advance(LivenessTimes().lease_us - 1);
  fleet_.engine(kPrefill).Step(fleet_.now_us());
  EXPECT_GT(fleet_.engine(kPrefill).Load().blocks.held, 0);
  fleet_.Advance(1'000);
  fleet_.engine(kPrefill).Step(fleet_.now_us());
  EXPECT_EQ(fleet_.engine(kPrefill).Load().blocks.held, 0);
  // The decode side gives up as well: granted, and silence since.
  fleet_.engine(kDecode).Step(fleet_.now_us());
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(submit.attempt).ended[0]));
  Run();
}

TEST_F(EngineTransferTest, RenewedLeaseKeepsAPromptThatWaitsLongForItsGrant) {
  Create(/*decode_blocks=*/12, /*prefill_blocks=*/64);
  const Submit running = MakeSubmit(1, RandomTokens(30, 1), 120);
  fleet_.Submit(kDecode, running);
  const Submit submit = Disaggregated(2, RandomTokens(150, 3), 5);
  fleet_.Submit(kDecode, submit);
  for (int i = 0; i < 100; ++i) {
    fleet_.RunOne();
    if (i % 10 != 0) continue;
    fleet_.Advance(LivenessTimes().renew_us);
    fleet_.Renew();
  }
  Run();
  EXPECT_EQ(fleet_.CheckFinished(running), "");
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

// A prefill worker in a long step says nothing of the prompt; its timer thread does.
TEST_F(EngineTransferTest, RenewedReservationOutlivesALongStepOfThePrefillWorker) {
  Create(64, 64);
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 5);
  DecodeUntil("Grant", submit);
  fleet_.Pause(kPrefill, true);
  for (int i = 0; i < 40; ++i) {
    fleet_.Advance(LivenessTimes().renew_us);
    fleet_.Renew();
    while (fleet_.RunOne()) {
    }
  }
  EXPECT_THAT(fleet_.record(submit.attempt).ended, IsEmpty());
  fleet_.Pause(kPrefill, false);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineTransferTest, ACancelAfterTheDeadlineLeavesNoTimeBehind) {
  Create(64, 64);
  Submit submit = Disaggregated(1, RandomTokens(150, 3), 5);
  submit.spec.time_left_us = 1'000'000;
  fleet_.Pause(kPrefill, true);
  fleet_.Submit(kDecode, submit);
  fleet_.Advance(2'000'000);
  while (fleet_.RunOne()) {
  }
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(fleet_.record(submit.attempt).ended[0]));
  fleet_.Pause(kPrefill, false);
  Run();  // The fleet refuses a negative time, as the wire does.
}

TEST_F(EngineTransferTest, ALongerContextAtTheDecodeWorkerIsFilled) {
  fleet_.AddWorker({.engine = SmallEngine(64)});
  EngineOptions shorter = SmallEngine(64);
  shorter.max_model_tokens = 151;
  fleet_.AddWorker({.engine = shorter});
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 5);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineTransferTest, FailedRunEndsTheAttemptInternal) {
  Create(64, 64, /*failing_token=*/5'000);
  Submit submit = Disaggregated(1, RandomTokens(150, 3), 10);
  submit.spec.token_ids[100] = 5'000;
  fleet_.Submit(kDecode, submit);
  Run();
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_EQ(fleet_.record(submit.attempt).ended[0].code(), absl::StatusCode::kInternal);
}

TEST_F(EngineTransferTest, DrainingPrefillWorkerServesWhatItStartedAndRefusesTheRest) {
  Create(/*decode_blocks=*/64, /*prefill_blocks=*/24);  // For one prompt at a time.
  const Submit started = Disaggregated(1, RandomTokens(300, 1), 5);
  const Submit waiting = Disaggregated(2, RandomTokens(300, 2), 5);
  fleet_.Submit(kDecode, started);
  fleet_.Submit(kDecode, waiting);
  while (computed(kPrefill) == 0 || fleet_.engine(kPrefill).Load().waiting_sequences == 0) {
    ASSERT_TRUE(fleet_.RunOne());
  }
  fleet_.engine(kPrefill).Drain(fleet_.now_us());
  EXPECT_FALSE(fleet_.engine(kPrefill).drained());
  Run();
  EXPECT_EQ(fleet_.CheckFinished(started), "");
  ASSERT_THAT(fleet_.record(waiting.attempt).refused, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(waiting.attempt).refused[0]));
  EXPECT_TRUE(fleet_.engine(kPrefill).drained());
}

TEST_F(EngineTransferTest, DrainingDecodeWorkerCancelsItsTransfers) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(300, 1), 5);
  fleet_.Submit(kDecode, submit);
  while (fleet_.frames_delivered() == 0) ASSERT_TRUE(fleet_.RunOne());
  fleet_.engine(kDecode).Drain(fleet_.now_us());
  Run();
  EXPECT_TRUE(fleet_.engine(kDecode).drained());
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(fleet_.record(submit.attempt).ended[0]));
}

TEST_F(EngineTransferTest, LateCopiesOfEveryMessageChangeNothing) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 10);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  const int64_t before = computed(kPrefill);
  Engine& prefill = fleet_.engine(kPrefill);
  Engine& decode = fleet_.engine(kDecode);
  const JobId job = JobOf(submit);
  for (const DecodeToPrefill& message : std::vector<DecodeToPrefill>{
           PrefillSubmitOf(submit), Grant{.job = job, .reservation = {.index = 0, .generation = 1}},
           Resend{.job = job}, Committed{.job = job}, PrefillCancel{.job = job},
           Renew{.jobs = {job}}}) {
    prefill.OnDecodeMessage(100, message, fleet_.now_us());
  }
  for (const PrefillToDecode& message : std::vector<PrefillToDecode>{
           Start{.job = job}, PrefillRefused{.job = job, .status = absl::InternalError("x")},
           Progress{.job = job}, FirstToken{.job = job, .tokens = {SampledToken()}},
           Done{.job = job}}) {
    decode.OnPrefillMessage(fleet_.peer(kPrefill).worker, message, fleet_.now_us());
  }
  prefill.OnFrameSent(1, true, fleet_.now_us());
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(computed(kPrefill), before);
}

// The transport still has frames of the first when its submit comes again, with more time.
TEST_F(EngineTransferTest, WhatHasEndedIsNotStartedAgainWhileItsFramesAreUnderWay) {
  Create();
  Submit submit = Disaggregated(1, RandomTokens(150, 3), 10);
  submit.spec.time_left_us = 1'000'000;
  fleet_.HoldFrames();
  fleet_.Submit(kDecode, submit);
  fleet_.RunUntil([&] { return fleet_.messages("Frame") == 10; });
  fleet_.Advance(2'000'000);
  while (fleet_.RunOne()) {
  }
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_EQ(fleet_.engine(kPrefill).Load().blocks.quarantined, 10);
  Engine& prefill = fleet_.engine(kPrefill);
  prefill.OnDecodeMessage(100, PrefillSubmitOf(submit), fleet_.now_us());
  prefill.Step(fleet_.now_us());
  prefill.OnDecodeMessage(100,
                          Grant{.job = JobOf(submit), .reservation = {.index = 0, .generation = 1}},
                          fleet_.now_us());
  EXPECT_EQ(fleet_.messages("Start"), 1);
  fleet_.ReleaseFrames();
  Run();
}

TEST_F(EngineTransferTest, PromptLogprobsThatNobodyAskedForEndTheAttempt) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(100, 3), 10);
  fleet_.Submit(kDecode, submit);
  FirstToken first{.job = JobOf(submit), .tokens = {SampledToken()}};
  first.prompt_logprobs.resize(1'000'000);
  fleet_.engine(kDecode).OnPrefillMessage(fleet_.peer(kPrefill).worker, first, fleet_.now_us());
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsInternal(fleet_.record(submit.attempt).ended[0]));
  EXPECT_THAT(fleet_.record(submit.attempt).prompts, IsEmpty());
  Run();
}

TEST_F(EngineTransferTest, PrefillSubmitOutOfRangeIsRefused) {
  Create();
  const PrefillSubmit good = PrefillSubmitOf(Disaggregated(1, RandomTokens(20, 3), 10));
  std::vector<PrefillSubmit> bad(6, good);
  bad[0].spec.prompt_tokens = 0;
  bad[1].spec.prompt_tokens = 21;
  bad[2].spec.token_ids.clear();
  bad[3].spec.time_left_us = INT64_MIN;
  bad[4].first_block = 3;
  bad[5].num_blocks = 3;
  for (size_t i = 0; i < bad.size(); ++i) {
    bad[i].job = 50 + i;
    fleet_.engine(kPrefill).OnDecodeMessage(100, bad[i], fleet_.now_us());
  }
  Run();
  EXPECT_EQ(fleet_.messages("Refused"), 6);
  EXPECT_EQ(computed(kPrefill), 0);
}

TEST_F(EngineTransferTest, PrefillCancelThatOvertakesItsSubmitLeavesATombstone) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(150, 3), 10);
  fleet_.engine(kPrefill).OnDecodeMessage(
      100, PrefillCancel{.job = JobOf(submit), .time_left_us = 1'000'000}, fleet_.now_us());
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(computed(kPrefill), 0);
  EXPECT_EQ(fleet_.record(submit.attempt).refused.size(), 1u);
}

TEST_F(EngineTransferTest, ItsRouterLearnsThatAPairCannotExchangeBlocks) {
  Create();
  const Submit submit = Disaggregated(1, RandomTokens(100, 1), 6);
  fleet_.Submit(kDecode, submit);
  fleet_.engine(kDecode).OnPrefillLost(fleet_.peer(kPrefill).worker,
                                       absl::FailedPreconditionError("no common path"),
                                       fleet_.now_us());
  ASSERT_TRUE(fleet_.RunUntilQuiet());
  ASSERT_THAT(fleet_.record(submit.attempt).ended, SizeIs(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(fleet_.record(submit.attempt).ended[0]));
  EXPECT_THAT(fleet_.pauses(), IsEmpty()) << "waiting would not help";
}

TEST_F(EngineTransferTest, RandomFleetsStayExactUnderCancelsCorruptionAndLostSessions) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    EngineFleet fleet;
    EngineOptions options = SmallEngine(static_cast<int32_t>(random.Between(14, 40)));
    options.kv.block_tokens = random.Chance(0.7) ? 16 : 32;
    options.max_batched_tokens = static_cast<int32_t>(random.Between(9, 80));
    fleet.AddWorker({.engine = options});
    options.kv.num_blocks = static_cast<int32_t>(random.Between(14, 40));
    fleet.AddWorker({.engine = options});
    std::vector<Submit> submits;
    std::vector<bool> cancelled;
    bool broken = false;
    for (uint64_t i = 1; i <= 20; ++i) {
      const auto length = static_cast<int32_t>(random.Between(1, 150));
      Submit submit = MakeSubmit(i, RandomTokens(length, random.Below(3)),
                                 static_cast<int32_t>(random.Between(1, 40)),
                                 static_cast<int32_t>(random.Between(1, 3)));
      if (random.Chance(0.8)) {
        submit.prefill = fleet.peer(kPrefill);
        submit.disaggregate_from_tokens = random.Chance(0.5) ? 1 : 40;
      }
      if (random.Chance(0.2)) submit.spec.sampling.num_prompt_logprobs = 1;
      submit.spec.runs_alone = random.Chance(0.05);
      fleet.Submit(kDecode, submit);
      submits.push_back(submit);
      cancelled.push_back(false);
      if (random.Chance(0.2)) fleet.CorruptFrames(static_cast<int>(random.Below(3)));
      for (uint64_t events = random.Below(30); events > 0; --events) {
        fleet.RunOne();
        ASSERT_EQ(fleet.Audit(), "");
      }
      if (random.Chance(0.05)) {
        fleet.BreakSession(kDecode, kPrefill);
        broken = true;
      }
      if (random.Chance(0.3)) {
        const size_t victim = random.Below(submits.size());
        fleet.Cancel(kDecode, submits[victim].attempt);
        cancelled[victim] = true;
      }
    }
    ASSERT_TRUE(fleet.RunUntilQuiet());
    for (size_t i = 0; i < submits.size(); ++i) {
      const AttemptRecord& record = fleet.record(submits[i].attempt);
      if ((cancelled[i] || broken) && !record.ended.empty()) {
        EXPECT_THAT(record.ended, SizeIs(1));
        EXPECT_TRUE(absl::IsCancelled(record.ended[0]) || absl::IsUnavailable(record.ended[0]));
        EXPECT_FALSE(record.token_after_end);
      } else {
        EXPECT_EQ(fleet.CheckFinished(submits[i]), "") << "request " << i;
      }
    }
    ExpectQuiet(fleet);
  }
}

}  // namespace
}  // namespace tandem
