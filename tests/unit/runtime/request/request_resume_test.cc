#include "request_fixture.h"

namespace tandem {
namespace {

class RequestResumeTest : public RequestFixture {};

TEST_F(RequestResumeTest, ALostSessionContinuesTheStreamElsewhereFromItsTokens) {
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.sampling.num_prompt_logprobs = 0;
  asked.spec.sampling.logit_bias = {{7, -1.5f}};
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  const AttemptId first = last_submit().attempt;
  Say(a,
      {PromptEvent{
           .attempt = first, .cached_tokens = 0, .by_prefill = false, .prompt_logprobs = {{}, {}}},
       Token(first, 3, 'x'), Token(first, 4, 'y')});
  const SessionId b = AddWorker("b");
  owner_->OnSessionLost(a, now_us_);
  ASSERT_EQ(outbox_.submits.size(), 2u);
  EXPECT_EQ(last_target(), b);
  EXPECT_EQ(last_submit().spec.token_ids, (Tokens{1, 2, 3, 'x', 'y'}));
  EXPECT_EQ(last_submit().spec.prompt_tokens, 3);
  EXPECT_EQ(last_submit().attempt.attempt, 2u);
  EXPECT_EQ(last_submit().spec.sampling.num_prompt_logprobs, -1) << "the client has them";
  EXPECT_EQ(last_submit().spec.sampling.logit_bias, (std::vector<TokenBias>{{7, -1.5f}}));
  EXPECT_EQ(resumes(ResumeReason::kSessionLost), 1u);
  // What is late from the first attempt changes nothing.
  Say(a, {Token(first, 5, 'q')});
  Say(b, {Token(first, 5, 'q')});
  Say(b, {Token(last_submit().attempt, 5, 'z', 0, FinishReason::kLength)});
  EXPECT_EQ(sink_.text[0], "xyz");
  EXPECT_EQ(sink_.num_prompt_logprobs, 2u);
  EXPECT_TRUE(sink_.done);
  EXPECT_EQ(sink_.report.resumes, 1);
  ExpectNothingLive();
}

TEST_F(RequestResumeTest, TheFewestTokensBeforeAStopStringAreCountedOverAttempts) {
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  asked.stop_strings = {"s"};
  asked.spec.sampling.min_tokens = 3;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  const AttemptId first = last_submit().attempt;
  Say(a, {Token(first, 3, 's'), Token(first, 4, 'x')});
  const SessionId b = AddWorker("b");
  owner_->OnSessionLost(a, now_us_);
  const AttemptId second = last_submit().attempt;
  Say(b, {Token(second, 5, 's'), Token(second, 6, 's')});
  EXPECT_EQ(sink_.text[0], "sxs");
  EXPECT_EQ(sink_.tokens[0], (Tokens{'s', 'x', 's', 's'}));
  EXPECT_EQ(sink_.finish[0], FinishReason::kStop);
  ExpectNothingLive();
}

TEST_F(RequestResumeTest, DivergedChoicesResumeOneByOneAndUntouchedOnesTogether) {
  const SessionId a = AddWorker("a");
  Start(&sink_, 3);
  owner_->OnSessionLost(a, now_us_);
  const SessionId b = AddWorker("b");
  EXPECT_EQ(last_submit().spec.choices, (std::vector<int32_t>{0, 1, 2}));
  const AttemptId second = last_submit().attempt;
  Say(b, {Token(second, 3, 'a', 0), Token(second, 3, 'b', 1, FinishReason::kStop),
          Token(second, 3, 'c', 2)});
  const SessionId c = AddWorker("c");
  owner_->OnSessionLost(b, now_us_);
  ASSERT_EQ(outbox_.submits.size(), 4u);
  const Submit& zero = outbox_.submits[2].second;
  const Submit& two = outbox_.submits[3].second;
  EXPECT_EQ(zero.spec.choices, (std::vector<int32_t>{0}));
  EXPECT_EQ(zero.spec.token_ids, (Tokens{1, 2, 3, 'a'}));
  EXPECT_EQ(two.spec.choices, (std::vector<int32_t>{2}));
  EXPECT_EQ(two.spec.token_ids, (Tokens{1, 2, 3, 'c'}));
  EXPECT_NE(zero.attempt, two.attempt);
  Say(c, {Token(zero.attempt, 4, 'A', 0, FinishReason::kStop),
          Token(two.attempt, 4, 'C', 2, FinishReason::kLength)});
  EXPECT_TRUE(sink_.done);
  EXPECT_EQ(sink_.tokens[0], (Tokens{'a', 'A'}));
  EXPECT_EQ(sink_.tokens[2], (Tokens{'c', 'C'}));
  ExpectNothingLive();
}

TEST_F(RequestResumeTest, RepeatedPositionsAreDroppedAndGapsBreakTheSession) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const AttemptId first = last_submit().attempt;
  Say(a, {Token(first, 3, 'x'), Token(first, 3, 'x')});
  EXPECT_EQ(sink_.tokens[0], (Tokens{'x'}));
  EXPECT_EQ(owner_->counters().stale_events, 1u);
  Say(a, {Token(first, 5, 'z')});
  EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{a}));
  EXPECT_EQ(resumes(ResumeReason::kProtocolError), 1u);
  EXPECT_EQ(owner_->num_waiting(), 1);
}

TEST_F(RequestResumeTest, ATokenInThePromptBreaksTheSession) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const AttemptId first = last_submit().attempt;
  Say(a, {Token(first, 3, 'x'), Token(first, 2, 'x')});
  EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{a}));
  EXPECT_EQ(owner_->counters().protocol_errors, 1u);
  EXPECT_FALSE(sink_.ended());
}

TEST_F(RequestResumeTest, ATokenOfAChoiceThatThereIsNotBreaksTheSession) {
  for (const int32_t choice : {-1, 2}) {
    outbox_.closed.clear();
    Recreate({});
    const SessionId a = AddWorker("a");
    RecordingSink sink;
    Start(&sink, 2);
    Say(a, {Token(last_submit().attempt, 3, 'x', choice)});
    EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{a})) << choice;
    EXPECT_TRUE(sink.tokens.empty());
  }
}

TEST_F(RequestResumeTest, WhatFollowsAProtocolErrorInItsBatchIsNotHeard) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const AttemptId first = last_submit().attempt;
  Say(a, {Token(first, 5, 'z'), Token(first, 3, 'x')});
  EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{a}));
  EXPECT_TRUE(sink_.tokens.empty());
}

TEST_F(RequestResumeTest, AChunkMakesNoProtocolErrorOfItsBatchGood) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const AttemptId attempt = last_submit().attempt;
  owner_->OnStepBatch(a,
                      {.worker_incarnation = incarnations_[a],
                       .events = {Token(attempt, 5, 'z')},
                       .chunks = {{.attempt = attempt, .first_position = 0, .end_position = 3}}},
                      now_us_);
  EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{a}));
  EXPECT_EQ(owner_->counters().protocol_errors, 1u);
}

TEST_F(RequestResumeTest, APositionComputedTwiceDifferentlyIsADeterminismViolation) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const AttemptId first = last_submit().attempt;
  Say(a, {Token(first, 3, 'x'), Token(first, 3, 'y')});
  EXPECT_EQ(sink_.tokens[0], (Tokens{'x'}));
  EXPECT_EQ(sink_.error.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(owner_->counters().determinism_violations, 1u);
  ExpectNothingLive();
}

TEST_F(RequestResumeTest, ARestartedWorkerEndsWhatItRanBefore) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  AddWorker("a", WorkerRole::kHybrid, 2);
  EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{a}));
  ASSERT_EQ(outbox_.submits.size(), 2u);
  EXPECT_EQ(resumes(ResumeReason::kRestarted), 1u);
}

TEST_F(RequestResumeTest, AnswersOfAnotherIncarnationBreakTheSession) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  incarnations_[a] = 2;
  Say(a, {Token(last_submit().attempt, 3, 'x')});
  EXPECT_TRUE(sink_.tokens.empty());
  EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{a}));
  EXPECT_EQ(owner_->num_waiting(), 1);
  EXPECT_EQ(owner_->counters().stale_events, 1u);
}

TEST_F(RequestResumeTest, WhatRanThereGoesOnElsewhereAtOnce) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const SessionId b = AddWorker("b");
  incarnations_[a] = 2;
  Say(a, {});
  ASSERT_EQ(outbox_.submits.size(), 2u);
  EXPECT_EQ(last_target(), b);
}

TEST_F(RequestResumeTest, SilentAndStalledWorkersLoseTheirStreams) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  muted_ = {"a"};
  Advance(1'800'000);
  EXPECT_TRUE(outbox_.closed.empty());
  Advance(400'000);
  EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{a}));
  EXPECT_EQ(resumes(ResumeReason::kSilent), 1u);
  EXPECT_FALSE(owner_->OnSessionUp({.name = "a", .incarnation = 1}, 77, now_us_));

  const SessionId b = AddWorker("b");
  ASSERT_EQ(last_target(), b);
  WorkerLoad stalled;
  stalled.has_work = true;
  stalled.since_progress_us = 2'000'000;
  owner_->OnHeartbeat({.name = "b", .incarnation = 1}, stalled, false, now_us_);
  owner_->Tick(now_us_);
  EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{a, b}));
  EXPECT_EQ(resumes(ResumeReason::kStalled), 1u);
}

TEST_F(RequestResumeTest, ARouterThatSleptDoesNotBlameItsWorkers) {
  AddWorker("a");
  owner_->Tick(now_us_);
  Start(&sink_);
  now_us_ += 30'000'000;
  owner_->Tick(now_us_);
  EXPECT_TRUE(outbox_.closed.empty());
}

TEST_F(RequestResumeTest, StreamsParkUntilTheirNumericsIsBack) {
  const SessionId a = AddWorker("a", WorkerRole::kHybrid, 1, "old");
  AddWorker("b", WorkerRole::kHybrid, 1, "new");
  RecordingSink other;
  Start(&sink_);
  Start(&other);
  // One of them is on a; it gets a token there.
  const auto on_a = std::find_if(outbox_.submits.begin(), outbox_.submits.end(),
                                 [a](const auto& s) { return s.first == a; });
  ASSERT_NE(on_a, outbox_.submits.end());
  const AttemptId attempt = on_a->second.attempt;
  Say(a, {Token(attempt, 3, 'x')});
  const size_t before = outbox_.submits.size();
  owner_->OnSessionLost(a, now_us_);
  Advance(20'000'000);
  EXPECT_EQ(outbox_.submits.size(), before) << "b computes other bits";
  EXPECT_EQ(owner_->num_waiting(), 1) << "and started streams are not given up after the grace";
  const SessionId c = AddWorker("c", WorkerRole::kHybrid, 1, "old");
  ASSERT_EQ(outbox_.submits.size(), before + 1);
  EXPECT_EQ(last_target(), c);
  EXPECT_EQ(last_submit().attempt.request, attempt.request);
}

TEST_F(RequestResumeTest, StreamsOfOtherNumericsDoNotWaitBehindEachOther) {
  RecordingSink younger;
  const SessionId a = AddWorker("a", WorkerRole::kHybrid, 1, "old");
  Start(&sink_);
  const SessionId b = AddWorker("b", WorkerRole::kHybrid, 1, "new");
  const RequestId second = Start(&younger);
  ASSERT_EQ(last_target(), b);
  Say(a, {Token(outbox_.submits[0].second.attempt, 3, 'x')});
  Say(b, {Token(outbox_.submits[1].second.attempt, 3, 'y')});
  owner_->OnSessionLost(a, now_us_);
  owner_->OnSessionLost(b, now_us_);
  AddWorker("c", WorkerRole::kHybrid, 1, "new");
  EXPECT_EQ(owner_->num_waiting(), 1);
  EXPECT_EQ(last_submit().attempt.request, second);
}

TEST_F(RequestResumeTest, AfterTwoDeathsItRunsAloneAfterFourItIsPoison) {
  SessionId session = AddWorker("a");
  Start(&sink_);
  for (int death = 1; death <= 4; ++death) {
    EXPECT_EQ(last_submit().spec.runs_alone, death > 2) << death;
    owner_->OnSessionLost(session, now_us_);
    if (death < 4) session = AddWorker("w" + std::to_string(death));
  }
  AddWorker("idle");
  EXPECT_EQ(owner_->num_waiting(), 1) << "a lost session may be no death";
  muted_ = {"a", "w1", "w2", "w3"};
  Advance(2'000'000);
  EXPECT_EQ(sink_.error.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(outcomes(RequestOutcome::kPoison), 1u);
  ExpectNothingLive();
}

TEST_F(RequestResumeTest, ALostConnectionToALivingWorkerIsNoDeath) {
  SessionId session = AddWorker("a");
  Start(&sink_);
  for (int i = 0; i < 6; ++i) {
    owner_->OnSessionLost(session, now_us_);
    Advance(200'000);  // Its heartbeats go on.
    session = OpenSession({.name = "a", .incarnation = 1});
    EXPECT_FALSE(last_submit().spec.runs_alone) << i;
  }
  EXPECT_FALSE(sink_.ended());
}

TEST_F(RequestResumeTest, WhatAWorkerHasOutlivedIsNoDeathOnceItIsReplaced) {
  SessionId session = AddWorker("a", WorkerRole::kHybrid, 1);
  Start(&sink_);
  for (uint64_t next_life = 2; next_life < 6; ++next_life) {
    owner_->OnSessionLost(session, now_us_);
    Advance(200'000);  // Its heartbeats go on.
    session = AddWorker("a", WorkerRole::kHybrid, next_life);
    EXPECT_FALSE(last_submit().spec.runs_alone) << next_life;
  }
}

TEST_F(RequestResumeTest, WhatAWorkerHasOutlivedIsNoDeathOnceItIsSilent) {
  SessionId session = AddWorker("w0");
  Start(&sink_);
  for (int i = 1; i < 4; ++i) {
    owner_->OnSessionLost(session, now_us_);
    Advance(200'000);  // Its heartbeats go on.
    muted_.insert("w" + std::to_string(i - 1));
    Advance(5'000'000);
    session = AddWorker("w" + std::to_string(i));
    EXPECT_FALSE(last_submit().spec.runs_alone) << i;
  }
}

// Who is younger than a poisonous request, and waits where it runs, is not blamed for its deaths.
TEST_F(RequestResumeTest, APoisonousRequestTakesNobodyWithIt) {
  RecordingSink innocent;
  SessionId session = AddWorker("w", WorkerRole::kHybrid, 1);
  Start(&sink_);
  Start(&innocent);
  const RequestId poison = outbox_.submits[0].second.attempt.request;
  for (uint64_t death = 1; death <= 4; ++death) {
    owner_->OnSessionLost(session, now_us_);
    const size_t before = outbox_.submits.size();
    session = AddWorker("w", WorkerRole::kHybrid, death + 1);
    EXPECT_EQ(outbox_.submits.size(), before + (death == 1 ? 2 : 1)) << "then one by one";
    if (death == 2 || death == 3) {
      EXPECT_EQ(last_submit().attempt.request, poison);
      EXPECT_TRUE(last_submit().spec.runs_alone);
    }
  }
  EXPECT_EQ(sink_.error.code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(innocent.ended());
  EXPECT_NE(last_submit().attempt.request, poison);
  Say(session, {Token(last_submit().attempt, 3, 'x', 0, FinishReason::kLength)});
  EXPECT_TRUE(innocent.done);
  EXPECT_EQ(outcomes(RequestOutcome::kPoison), 1u);
  ExpectNothingLive();
}

TEST_F(RequestResumeTest, OthersWaitForTheTokenOfARequestOnTrial) {
  SessionId session = AddWorker("w", WorkerRole::kHybrid, 1);
  Start(&sink_);
  for (uint64_t death = 1; death <= 2; ++death) {
    owner_->OnSessionLost(session, now_us_);
    session = AddWorker("w", WorkerRole::kHybrid, death + 1);
  }
  ASSERT_TRUE(last_submit().spec.runs_alone);
  const AttemptId on_trial = last_submit().attempt;
  RecordingSink other;
  Start(&other);
  EXPECT_EQ(last_submit().attempt, on_trial);
  Say(session, {Token(on_trial, 3, 'x')});
  EXPECT_NE(last_submit().attempt, on_trial);
  EXPECT_FALSE(last_submit().spec.runs_alone);
}

TEST_F(RequestResumeTest, AStoppedWorkerThatGoesOnHasNotDied) {
  AddWorker("a");
  Start(&sink_);
  for (int i = 0; i < 6; ++i) {
    muted_ = {"a"};
    Advance(2'200'000);
    EXPECT_EQ(resumes(ResumeReason::kSilent), static_cast<uint64_t>(i + 1));
    muted_ = {};
    Advance(200'000);
    OpenSession({.name = "a", .incarnation = 1});
    EXPECT_FALSE(last_submit().spec.runs_alone) << i;
  }
  EXPECT_FALSE(sink_.ended());
}

TEST_F(RequestResumeTest, AStalledPrefillWorkerLosesThePromptsInItsQueue) {
  const SessionId d = AddPair();
  RecordingSink computed;
  Start(&computed);
  Say(d, {Token(last_submit().attempt, 3, 'x')});
  Start(&sink_);
  const AttemptId stuck = last_submit().attempt;
  WorkerLoad stalled;
  stalled.has_work = true;
  stalled.since_progress_us = 2'000'000;
  owner_->OnHeartbeat({.name = "p", .incarnation = 1}, stalled, false, now_us_);
  owner_->Tick(now_us_);
  ASSERT_EQ(outbox_.cancels.size(), 1u);
  EXPECT_EQ(outbox_.cancels[0].second.attempt, stuck);
  EXPECT_EQ(last_submit().attempt.request, stuck.request);
  EXPECT_TRUE(last_submit().prefill.address.empty());
  EXPECT_EQ(resumes(ResumeReason::kStalled), 1u) << "who has a token needs it no more";
}

TEST_F(RequestResumeTest, OfTwoPrefillWorkersTheOneThatIsSilentLosesItsPrompts) {
  AddPair();
  Start(&sink_);
  ASSERT_EQ(last_submit().prefill.worker.name, "p");
  const AttemptId stuck = last_submit().attempt;
  AddWorker("q", WorkerRole::kPrefill);
  RecordingSink other;
  Start(&other);
  ASSERT_EQ(last_submit().prefill.worker.name, "q");
  muted_ = {"p"};
  Advance(2'200'000);
  EXPECT_EQ(resumes(ResumeReason::kSilent), 1u);
  ASSERT_EQ(outbox_.cancels.size(), 1u);
  EXPECT_EQ(outbox_.cancels[0].second.attempt, stuck);
  EXPECT_EQ(last_submit().attempt.request, stuck.request);
  EXPECT_EQ(last_submit().prefill.worker.name, "q");
}

TEST_F(RequestResumeTest, APairThatCannotExchangeBlocksRests) {
  const SessionId d = AddPair();
  for (int64_t pause_us = LivenessTimes{}.first_pause_us; pause_us <= 8'000'000; pause_us *= 2) {
    RecordingSink first, next;
    const RequestId failed = Start(&first);
    ASSERT_EQ(last_submit().prefill.worker.name, "p") << pause_us;
    Say(d, {EndedEvent{.attempt = last_submit().attempt,
                       .status = absl::FailedPreconditionError("no common path")}});
    EXPECT_EQ(last_submit().attempt.request, failed);
    EXPECT_TRUE(last_submit().prefill.address.empty());
    Advance(pause_us - 200'000);
    const RequestId too_early = Start(&next);
    EXPECT_TRUE(last_submit().prefill.address.empty()) << pause_us;
    owner_->Cancel(failed, now_us_);
    owner_->Cancel(too_early, now_us_);
    Advance(200'000);
  }
}

TEST_F(RequestResumeTest, PairsThatCannotExchangeBlocksMakeNoSuspect) {
  const SessionId d = AddPair();
  for (const char* more : {"p2", "p3", "p4"}) AddWorker(more, WorkerRole::kPrefill);
  Start(&sink_);
  std::set<std::string> tried;
  while (!last_submit().prefill.address.empty()) {
    ASSERT_TRUE(tried.insert(last_submit().prefill.worker.name).second);
    EXPECT_FALSE(last_submit().spec.runs_alone);
    Say(d, {EndedEvent{.attempt = last_submit().attempt,
                       .status = absl::FailedPreconditionError("no common path")}});
  }
  EXPECT_EQ(tried.size(), 4u);
  EXPECT_FALSE(last_submit().spec.runs_alone);
  EXPECT_FALSE(sink_.ended());
}

TEST_F(RequestResumeTest, APairThatWorkedRestsAsBrieflyAsTheFirstTime) {
  const SessionId d = AddPair();
  const auto fail = [&] {
    RecordingSink sink;
    const RequestId failed = Start(&sink);
    ASSERT_EQ(last_submit().prefill.worker.name, "p");
    Say(d, {EndedEvent{.attempt = last_submit().attempt,
                       .status = absl::FailedPreconditionError("no common path")}});
    owner_->Cancel(failed, now_us_);
    Advance(LivenessTimes{}.first_pause_us);
  };
  fail();
  Start(&sink_);
  ASSERT_EQ(last_submit().prefill.worker.name, "p");
  Say(d, {PromptEvent{.attempt = last_submit().attempt,
                      .cached_tokens = 0,
                      .by_prefill = true,
                      .prompt_logprobs = {}}});
  fail();
  RecordingSink last;
  Start(&last);
  EXPECT_EQ(last_submit().prefill.worker.name, "p");
}

TEST_F(RequestResumeTest, ATokenInBetweenClearsTheSuspicion) {
  SessionId session = AddWorker("a");
  Start(&sink_);
  for (int death = 1; death <= 5; ++death) {
    EXPECT_EQ(last_submit().spec.runs_alone, death == 3 || death == 5) << death;
    if (death == 3) Say(session, {Token(last_submit().attempt, 3, 'x')});
    owner_->OnSessionLost(session, now_us_);
    session = AddWorker("w" + std::to_string(death));
  }
  EXPECT_FALSE(sink_.ended());
}

TEST_F(RequestResumeTest, ALostTransferAvoidsThatPrefillWorkerUntilItIsHeard) {
  const SessionId d = AddPair();
  Start(&sink_);
  ASSERT_EQ(last_submit().prefill.worker.name, "p");
  Say(d, {EndedEvent{.attempt = last_submit().attempt,
                     .status = absl::UnavailableError("prefill worker lost")}});
  ASSERT_EQ(outbox_.submits.size(), 2u);
  EXPECT_TRUE(last_submit().prefill.address.empty());
  EXPECT_EQ(resumes(ResumeReason::kTransferLost), 1u);
  Advance(200'000);
  RecordingSink next;
  Start(&next);
  EXPECT_EQ(last_submit().prefill.worker.name, "p");
}

// Once the prompt is computed, a prefill worker only sends.
TEST_F(RequestResumeTest, ALostTransferOfAComputedPromptIsNobodysDeath) {
  const SessionId d = AddPair();
  Start(&sink_);
  ASSERT_EQ(last_submit().prefill.worker.name, "p");
  Say(d, {Token(last_submit().attempt, 3, 'x')});
  Say(d, {EndedEvent{.attempt = last_submit().attempt,
                     .status = absl::UnavailableError("prefill worker lost")}});
  owner_->OnSessionLost(d, now_us_);
  AddWorker("e", WorkerRole::kDecode);
  EXPECT_EQ(outbox_.submits.size(), 3u);
  EXPECT_FALSE(last_submit().spec.runs_alone);
}

TEST_F(RequestResumeTest, ADrainMovesStreamsWithoutCountingDeaths) {
  for (int i = 0; i < 6; ++i) {
    const SessionId session = AddWorker("w" + std::to_string(i));
    if (i == 0) Start(&sink_);
    ASSERT_EQ(last_target(), session);
    EXPECT_FALSE(last_submit().spec.runs_alone);
    Say(session, {EndedEvent{.attempt = last_submit().attempt,
                             .status = absl::UnavailableError("draining")}});
  }
  EXPECT_EQ(resumes(ResumeReason::kDraining), 6u);
  EXPECT_FALSE(sink_.ended());
}

TEST_F(RequestResumeTest, ASessionThatEndsBecauseItsWorkerDrainsIsNoDeath) {
  for (int i = 0; i < 4; ++i) {
    const WorkerId worker = {.name = "w" + std::to_string(i), .incarnation = 1};
    const SessionId session = AddWorker(worker.name);
    if (i == 0) Start(&sink_);
    ASSERT_EQ(last_target(), session);
    EXPECT_FALSE(last_submit().spec.runs_alone) << i;
    owner_->OnHeartbeat(worker, {}, /*draining=*/true, now_us_);
    owner_->OnSessionLost(session, now_us_);
  }
  EXPECT_EQ(resumes(ResumeReason::kSessionLost), 4u);
}

TEST_F(RequestResumeTest, ADrainBlamesNoPrefillWorker) {
  const SessionId d = AddPair();
  Start(&sink_);
  const SessionId e = AddWorker("e", WorkerRole::kDecode);
  owner_->OnStepBatch(d,
                      {.worker_incarnation = 1,
                       .draining = true,
                       .events = {EndedEvent{.attempt = last_submit().attempt,
                                             .status = absl::UnavailableError("draining")}}},
                      now_us_);
  EXPECT_EQ(last_target(), e);
  EXPECT_EQ(last_submit().prefill.worker.name, "p");
  EXPECT_EQ(resumes(ResumeReason::kDraining), 1u);
}

TEST_F(RequestResumeTest, ErrorsOfTheRequestItselfAreItsEnd) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  Say(a, {EndedEvent{.attempt = last_submit().attempt,
                     .status = absl::InternalError("not a number in the logits")}});
  EXPECT_EQ(sink_.error.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(outbox_.submits.size(), 1u);
  ExpectNothingLive();
}

TEST_F(RequestResumeTest, APrefillWorkerAnswersForNoDecodeWorkersWord) {
  AddPair();
  const SessionId p = owner_->fleet().workers().at("p").session;
  Start(&sink_);
  Begin(p, last_submit().attempt, 0, 1'000'000);
  EXPECT_THAT(outbox_.closed, testing::IsEmpty());
  EXPECT_EQ(owner_->counters().protocol_errors, 0u);
}

}  // namespace
}  // namespace tandem
