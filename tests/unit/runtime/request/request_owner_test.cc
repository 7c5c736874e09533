#include "runtime/request/request_owner.h"

#include "request_fixture.h"

namespace tandem {
namespace {

class RequestOwnerTest : public RequestFixture {};

TEST_F(RequestOwnerTest, DeliversTokensTextAndOneTerminalEvent) {
  const SessionId a = AddWorker("a");
  const RequestId id = Start(&sink_);
  ASSERT_EQ(outbox_.submits.size(), 1u);
  EXPECT_EQ(last_target(), a);
  EXPECT_EQ(last_submit().attempt, (AttemptId{.request = id, .attempt = 1}));
  EXPECT_EQ(last_submit().spec.token_ids, (Tokens{1, 2, 3}));
  EXPECT_EQ(last_submit().spec.prompt_tokens, 3);
  EXPECT_EQ(last_submit().spec.time_left_us, kDefaultDeadlineUs);
  const AttemptId attempt = last_submit().attempt;
  Say(a, {PromptEvent{
              .attempt = attempt, .cached_tokens = 2, .by_prefill = false, .prompt_logprobs = {}},
          Token(attempt, 3, 'x')});
  now_us_ += 5;
  Say(a, {Token(attempt, 4, 'y', 0, FinishReason::kLength)});
  EXPECT_EQ(sink_.tokens[0], (Tokens{'x', 'y'}));
  EXPECT_EQ(sink_.text[0], "xy");
  EXPECT_EQ(sink_.finish[0], FinishReason::kLength);
  EXPECT_EQ(sink_.numerics, "n");
  EXPECT_TRUE(sink_.done);
  EXPECT_EQ(sink_.report.prompt_tokens, 3);
  EXPECT_EQ(sink_.report.completion_tokens, 2);
  EXPECT_EQ(sink_.report.cached_tokens, 2);
  EXPECT_EQ(outcomes(RequestOutcome::kDone), 1u);
  EXPECT_TRUE(outbox_.cancels.empty());
  ExpectNothingLive();
}

TEST_F(RequestOwnerTest, AStopStringCutsTheTextKeepsTheTokensAndCancelsTheAttempt) {
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  asked.stop_strings = {"bc"};
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  const AttemptId attempt = last_submit().attempt;
  Say(a, {Token(attempt, 3, 'a'), Token(attempt, 4, 'b')});
  EXPECT_EQ(sink_.text[0], "a");
  Say(a, {Token(attempt, 5, 'c'), Token(attempt, 6, 'd')});
  EXPECT_EQ(sink_.text[0], "a");
  EXPECT_EQ(sink_.tokens[0], (Tokens{'a', 'b', 'c'}));
  EXPECT_EQ(sink_.finish[0], FinishReason::kStop);
  EXPECT_TRUE(sink_.done);
  ASSERT_EQ(outbox_.cancels.size(), 1u);
  EXPECT_EQ(outbox_.cancels[0].second.attempt, attempt);
  ExpectNothingLive();
}

TEST_F(RequestOwnerTest, AChoiceThatStoppedLetsTheOthersOfItsAttemptGoOn) {
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_, 2);
  asked.stop_strings = {"s"};
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  EXPECT_EQ(last_submit().spec.choices, (std::vector<int32_t>{0, 1}));
  const AttemptId attempt = last_submit().attempt;
  Say(a, {Token(attempt, 3, 's', 0), Token(attempt, 3, 'x', 1)});
  EXPECT_TRUE(outbox_.cancels.empty());
  Say(a, {Token(attempt, 4, 'y', 0), Token(attempt, 4, 'z', 1), Token(attempt, 5, 'y', 0)});
  EXPECT_EQ(sink_.tokens[0], (Tokens{'s'}));
  Say(a, {Token(attempt, 5, 'e', 1, FinishReason::kStop)});
  EXPECT_EQ(sink_.text[1], "xz");
  EXPECT_TRUE(sink_.done);
  EXPECT_EQ(outbox_.cancels.size(), 1u) << "choice 0 still ran at the worker";
  EXPECT_TRUE(outbox_.closed.empty()) << "which does not know of stop strings";
  ExpectNothingLive();
}

TEST_F(RequestOwnerTest, CancelEndsItAtTheWorkerAndForItsSinkOnce) {
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.time_left_us = 60'000'000;
  const RequestId id = *owner_->Start(std::move(asked), now_us_);
  const AttemptId attempt = last_submit().attempt;
  Advance(20'000'000);
  EXPECT_TRUE(owner_->Cancel(id, now_us_));
  EXPECT_TRUE(absl::IsCancelled(sink_.error));
  ASSERT_EQ(outbox_.cancels.size(), 1u);
  EXPECT_EQ(outbox_.cancels[0].second.time_left_us, 40'000'000);
  EXPECT_EQ(outbox_.cancels[0].first, a);
  EXPECT_EQ(outbox_.cancels[0].second.attempt, attempt);
  EXPECT_FALSE(owner_->Cancel(id, now_us_));
  Say(a,
      {Token(attempt, 3, 'x'), EndedEvent{.attempt = attempt, .status = absl::CancelledError("")}});
  EXPECT_TRUE(sink_.tokens.empty());
  ExpectNothingLive();
}

TEST_F(RequestOwnerTest, TheDeadlineEndsRunningAndWaitingRequests) {
  RecordingSink waiting;
  ClientRequest asked = MakeRequest(&waiting);
  asked.spec.time_left_us = 1'000'000;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  Advance(1'000'000);
  EXPECT_TRUE(absl::IsDeadlineExceeded(waiting.error));
  AddWorker("a");
  asked = MakeRequest(&sink_);
  asked.spec.time_left_us = 1'000'000;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  Advance(999'999);
  EXPECT_FALSE(sink_.ended());
  Advance(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(sink_.error));
  EXPECT_EQ(outbox_.cancels.size(), 1u);
  ExpectNothingLive();
}

TEST_F(RequestOwnerTest, ARefusalIsNotAnAttemptAndGoesElsewhere) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const AttemptId first = last_submit().attempt;
  const int64_t first_us = now_us_++;
  const SessionId b = AddWorker("b");
  Say(a, {RefusedEvent{.attempt = first, .status = absl::UnavailableError("draining")}});
  ASSERT_EQ(outbox_.submits.size(), 2u);
  EXPECT_EQ(last_target(), b);
  EXPECT_EQ(last_submit().attempt.attempt, 2u) << "numbers are never reused";
  Say(b, {Token(last_submit().attempt, 3, 'x', 0, FinishReason::kStop)});
  EXPECT_TRUE(sink_.done);
  EXPECT_EQ(sink_.report.attempts, 1);
  EXPECT_EQ(sink_.report.resumes, 0);
  EXPECT_EQ(sink_.report.first_submit_us, first_us);
  EXPECT_EQ(owner_->counters().refusals, 1u);
  EXPECT_EQ(owner_->counters().attempts(), 2u) << "sent";
  ExpectNothingLive();
}

TEST_F(RequestOwnerTest, WhenAllAreFullRequestsWaitInOrderOfArrival) {
  const SessionId a = AddWorker("a");
  RecordingSink sinks[4];
  for (RecordingSink& sink : sinks) Start(&sink);
  ASSERT_EQ(outbox_.submits.size(), 4u);
  std::vector<AttemptId> attempts;
  for (const auto& [session, submit] : outbox_.submits) attempts.push_back(submit.attempt);
  const absl::Status full = absl::ResourceExhaustedError("full");
  Say(a, {RefusedEvent{.attempt = attempts[3], .status = full},
          RefusedEvent{.attempt = attempts[1], .status = full},
          RefusedEvent{.attempt = attempts[2], .status = full}});
  EXPECT_EQ(outbox_.submits.size(), 4u);
  EXPECT_EQ(owner_->num_waiting(), 3);
  Say(a, {Token(attempts[0], 3, 'x', 0, FinishReason::kStop)});
  ASSERT_EQ(outbox_.submits.size(), 5u) << "one out, one in";
  EXPECT_EQ(last_submit().attempt.request, attempts[1].request);
  Advance(200'000);
  ASSERT_EQ(outbox_.submits.size(), 6u);
  EXPECT_EQ(last_submit().attempt.request, attempts[2].request);
}

TEST_F(RequestOwnerTest, AFullPrefillWorkerIsNotLostAndItsPromptsWaitForIt) {
  const SessionId d = AddPair();
  RecordingSink sinks[3];
  for (RecordingSink& sink : sinks) Start(&sink);
  ASSERT_EQ(outbox_.submits.size(), 3u);
  const AttemptId first = outbox_.submits[0].second.attempt;
  for (const size_t i : {1, 2}) {
    Say(d, {RefusedEvent{.attempt = outbox_.submits[i].second.attempt,
                         .status = absl::ResourceExhaustedError("full"),
                         .by_prefill = true}});
  }
  EXPECT_EQ(outbox_.submits.size(), 3u);
  EXPECT_EQ(owner_->num_waiting(), 2);
  for (const auto& [name, worker] : owner_->fleet().workers()) {
    EXPECT_TRUE(owner_->fleet().Healthy(worker, now_us_)) << name;
  }
  Say(d, {Token(first, 3, 'x')});
  ASSERT_EQ(outbox_.submits.size(), 4u) << "the prefill worker is done with one";
  EXPECT_EQ(last_submit().prefill.worker.name, "p");
  EXPECT_EQ(last_submit().attempt.request, outbox_.submits[1].second.attempt.request);
}

TEST_F(RequestOwnerTest, AFullWorkerIsNotAskedBeforeTheTimeThatItNamed) {
  const auto refuse = [this](SessionId session, bool by_prefill) {
    Say(session, {RefusedEvent{.attempt = last_submit().attempt,
                               .status = absl::ResourceExhaustedError("full"),
                               .by_prefill = by_prefill,
                               .retry_after_us = 700'000}});
    const size_t before = outbox_.submits.size();
    Advance(600'000);
    EXPECT_EQ(outbox_.submits.size(), before);
    Advance(200'000);
    EXPECT_EQ(outbox_.submits.size(), before + 1);
  };
  const SessionId a = AddWorker("a");
  Start(&sink_);
  refuse(a, /*by_prefill=*/false);
  RecordingSink other;
  const SessionId d = AddPair();
  Start(&other);
  refuse(d, /*by_prefill=*/true);
  EXPECT_EQ(last_submit().prefill.worker.name, "p");
}

TEST_F(RequestOwnerTest, OfAPairItIsTheOneThatRefusedThatIsGone) {
  SessionId d = AddPair();
  Start(&sink_);
  const auto refuse = [&](bool by_prefill) {
    Say(d, {RefusedEvent{.attempt = last_submit().attempt,
                         .status = absl::UnavailableError("gone"),
                         .by_prefill = by_prefill}});
  };
  refuse(/*by_prefill=*/true);
  EXPECT_EQ(last_target(), d);
  EXPECT_EQ(last_submit().prefill.address, "") << "until it is heard again";
  RecordingSink other;
  d = AddPair();
  Start(&other);
  ASSERT_EQ(last_submit().prefill.worker.name, "p");
  refuse(/*by_prefill=*/false);
  EXPECT_NE(last_target(), d) << "it drains";
}

TEST_F(RequestOwnerTest, AnAttemptOfAnotherRouterThatRunsAloneDoesNotMakeAWorkerFull) {
  SessionId session = AddWorker("w0");
  Start(&sink_);
  for (int death = 1; death <= kDeathsBeforeRunningAlone; ++death) {
    owner_->OnSessionLost(session, now_us_);
    muted_.insert("w" + std::to_string(death - 1));
    session = AddWorker("w" + std::to_string(death));
  }
  ASSERT_TRUE(last_submit().spec.runs_alone);
  Say(session, {RefusedEvent{.attempt = last_submit().attempt,
                             .status = absl::AbortedError("another runs alone")}});
  EXPECT_EQ(owner_->num_waiting(), 1) << "not before a heartbeat";
  Advance(200'000);
  ASSERT_EQ(owner_->num_waiting(), 0);
  EXPECT_TRUE(last_submit().spec.runs_alone);
  Say(session, {Token(last_submit().attempt, 3, 'x', 0, FinishReason::kLength)});
  RecordingSink others[4];
  for (RecordingSink& other : others) Start(&other);
  EXPECT_EQ(owner_->num_waiting(), 0);
}

TEST_F(RequestOwnerTest, ASuspectKeepsOneWorkerFreeAndNoneFromTheOthers) {
  SessionId session = AddWorker("w0");
  Start(&sink_);
  owner_->OnSessionLost(session, now_us_);
  session = AddWorker("w1");
  RecordingSink sinks[6];
  AddWorker("x");
  const SessionId y = AddWorker("y");
  Start(&sinks[0]);
  Start(&sinks[1]);
  ASSERT_NE(outbox_.submits[2].first, outbox_.submits[3].first) << "x and y have a prompt each";
  owner_->OnSessionLost(session, now_us_);
  EXPECT_EQ(owner_->num_waiting(), 1) << "there is no worker for it alone";
  for (int i = 2; i < 6; ++i) {
    Start(&sinks[i]);
    EXPECT_EQ(last_target(), y) << i;
  }
  EXPECT_EQ(owner_->num_waiting(), 1);
}

TEST_F(RequestOwnerTest, EachRequestThatFindsNobodyWaitsItsOwnGrace) {
  RecordingSink first, second;
  Start(&first);
  Advance(9'000'000);
  Start(&second);
  Advance(1'100'000);
  EXPECT_TRUE(absl::IsUnavailable(first.error)) << first.error;
  EXPECT_FALSE(second.ended());
  Advance(8'500'000);
  EXPECT_FALSE(second.ended());
  Advance(600'000);
  EXPECT_TRUE(absl::IsUnavailable(second.error)) << second.error;
}

TEST_F(RequestOwnerTest, AtTenTimesTheLoadFewSubmitsAreRefused) {
  AddWorker("a");
  constexpr size_t kRoom = 20, kRequests = 200;
  std::vector<RecordingSink> sinks(kRequests);
  for (RecordingSink& sink : sinks) Start(&sink);
  std::vector<AttemptId> there;
  size_t seen = 0, refused = 0, submits_in_first_burst = outbox_.submits.size();
  for (int step = 0; step < 1'000 && owner_->num_requests() > 0; ++step) {
    for (; seen < outbox_.submits.size(); ++seen) {
      const AttemptId attempt = outbox_.submits[seen].second.attempt;
      if (there.size() < kRoom) {
        there.push_back(attempt);
      } else {
        ++refused;
        Say(1, {RefusedEvent{.attempt = attempt, .status = absl::ResourceExhaustedError("full")}});
      }
    }
    Advance(100'000);
    if (step % 4 != 0) continue;
    const AttemptId ends = there.front();
    there.erase(there.begin());
    Say(1, {Token(ends, 3, 'x', 0, FinishReason::kLength)});
  }
  EXPECT_EQ(owner_->num_requests(), 0);
  // Apart from what was there before the worker was known to be full.
  EXPECT_LE(refused - (submits_in_first_burst - kRoom), kRequests / 10);
}

TEST_F(RequestOwnerTest, TooManyWaitingAreRefusedAtOnce) {
  RequestOwnerOptions options;
  options.max_waiting_requests = 2;
  Recreate(options);
  RecordingSink sinks[3];
  EXPECT_TRUE(owner_->Start(MakeRequest(&sinks[0]), now_us_).ok());
  EXPECT_TRUE(owner_->Start(MakeRequest(&sinks[1]), now_us_).ok());
  const auto third = owner_->Start(MakeRequest(&sinks[2]), now_us_);
  EXPECT_TRUE(absl::IsResourceExhausted(third.status()));
  AddWorker("a");
  EXPECT_EQ(outbox_.submits.size(), 2u);
  EXPECT_TRUE(owner_->Start(MakeRequest(&sinks[2]), now_us_).ok());
  EXPECT_EQ(outcomes(RequestOutcome::kResourceExhausted), 1u);
}

TEST_F(RequestOwnerTest, TooManyThatRunAreRefusedAtOnce) {
  RequestOwnerOptions options;
  options.max_requests = 2;
  Recreate(options);
  AddWorker("a");
  RecordingSink sinks[3];
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(owner_->Start(MakeRequest(&sinks[i]), now_us_).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(owner_->Start(MakeRequest(&sinks[2]), now_us_).status()));
}

TEST_F(RequestOwnerTest, OneClientDoesNotHaveAllThatMayBeOpen) {
  RequestOwnerOptions options;
  options.max_requests = 3;
  options.max_waiting_requests = 3;
  Recreate(options);
  RecordingSink sinks[4];
  const auto of = [&](int i, const char* client) {
    ClientRequest asked = MakeRequest(&sinks[i]);
    asked.client = client;
    return asked;
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(owner_->Start(of(i, "flood"), now_us_).ok());
  EXPECT_TRUE(owner_->Start(of(3, "other"), now_us_).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(sinks[2].error));
}

TEST_F(RequestOwnerTest, TheNextTickComesWithTheNextDeadline) {
  EXPECT_EQ(owner_->Tick(now_us_), now_us_ + 200'000);
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.time_left_us = 50'000;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  EXPECT_EQ(owner_->Tick(now_us_), now_us_ + 50'000);
}

TEST_F(RequestOwnerTest, AHeartbeatOfALifeThatIsNotKnownAsksForANewWatch) {
  AddWorker("a");
  const WorkerId other = {.name = "a", .incarnation = 2};
  owner_->OnHeartbeat(other, {}, /*draining=*/false, now_us_);
  EXPECT_EQ(outbox_.rewatched, std::vector<WorkerId>{other});
}

// Its client asked for eight, and its router keeps them all.
TEST_F(RequestOwnerTest, AWorkerThatGoesOnBeyondTheLastTokenIsNoWorker) {
  const SessionId a = AddWorker("a");
  AddWorker("b");
  const RequestId id = Start(&sink_);
  const SessionId session = last_target();
  const SessionId other = session == a ? a + 1 : a;
  const AttemptId attempt{.request = id, .attempt = 1};
  Say(session, {PromptEvent{.attempt = attempt}});
  for (int32_t i = 0; i < 8; ++i) Say(session, {Token(attempt, 3 + i, 'a' + i)});
  EXPECT_TRUE(outbox_.closed.empty());
  Say(session, {Token(attempt, 11, 'z')});
  EXPECT_EQ(sink_.tokens[0].size(), 8u);
  EXPECT_EQ(owner_->counters().protocol_errors, 1u);
  EXPECT_EQ(resumes(ResumeReason::kProtocolError), 1u);
  EXPECT_EQ(last_target(), other);
}

TEST_F(RequestOwnerTest, AnotherNameAtAnAddressEndsWhatRanThere) {
  const SessionId b = AddWorker("b");
  const std::vector<BlockHash> chain = HashChain({}, std::vector<int32_t>(16, 7));
  owner_->OnKvEvents({.name = "b", .incarnation = 1},
                     {.first_sequence = 0, .snapshot = true, .stored = chain, .removed = {}});
  Start(&sink_);
  EXPECT_EQ(last_target(), b);
  WorkerRegistration renamed;
  renamed.worker = {.name = "c", .incarnation = 1};
  renamed.kv.block_tokens = 16;
  ASSERT_TRUE(owner_->OnRegistration("b:1", renamed, now_us_).ok());
  EXPECT_EQ(resumes(ResumeReason::kRestarted), 1u);
  EXPECT_TRUE(owner_->prefix_index().LongestPrefixes(chain).empty());
  EXPECT_EQ(last_target(), b) << "nobody else takes it";
  EXPECT_EQ(outbox_.submits.size(), 1u);
  const SessionId a = AddWorker("a");
  EXPECT_EQ(last_target(), a);
}

TEST_F(RequestOwnerTest, WhatRanInAnEndedLifeGoesElsewhereAtOnce) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const SessionId b = AddWorker("b");
  ASSERT_EQ(last_target(), a);
  WorkerRegistration restarted = owner_->fleet().workers().at("a").registration;
  restarted.worker.incarnation = 2;
  ASSERT_TRUE(owner_->OnRegistration("a:1", restarted, now_us_).ok());
  EXPECT_EQ(last_target(), b);
}

TEST_F(RequestOwnerTest, AnEventOfAnotherRoutersRequestIsStale) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  AttemptId other = last_submit().attempt;
  ++other.request.router_incarnation;
  Say(a, {Token(other, 3, 'x', 0, FinishReason::kStop)});
  EXPECT_FALSE(sink_.ended());
  EXPECT_FALSE(owner_->Cancel(other.request, now_us_));
}

TEST_F(RequestOwnerTest, AWorkerIsKnownOnceItsSnapshotHasCome) {
  owner_->ExpectWorkers({"a:1"});
  WorkerRegistration registration;
  registration.worker = {.name = "a", .incarnation = 1};
  registration.kv.block_tokens = 16;
  ASSERT_TRUE(owner_->OnRegistration("a:1", registration, now_us_).ok());
  KvEvents events;
  owner_->OnKvEvents(registration.worker, events);
  EXPECT_FALSE(owner_->fleet().KnownCompletely());
  events.snapshot = true;
  owner_->OnKvEvents(registration.worker, events);
  EXPECT_TRUE(owner_->fleet().KnownCompletely());
}

TEST_F(RequestOwnerTest, WhatAForgottenWorkerHeldIsForgottenToo) {
  const SessionId a = AddWorker("a");
  const std::vector<BlockHash> chain = HashChain({}, std::vector<int32_t>(16, 7));
  const WorkerId worker = {.name = "a", .incarnation = 1};
  const KvEvents events{.first_sequence = 0, .snapshot = true, .stored = chain, .removed = {}};
  owner_->OnKvEvents(worker, events);
  EXPECT_EQ(owner_->prefix_index().LongestPrefixes(chain).size(), 1u);
  owner_->OnWatchLost(worker);
  owner_->OnSessionLost(a, now_us_);
  muted_ = {"a"};
  Advance(Fleet::kForgetAfterUs + 1'000'000);
  EXPECT_TRUE(owner_->prefix_index().LongestPrefixes(chain).empty());
}

TEST_F(RequestOwnerTest, APromptThatIsAllCachedIsComputedAllTheSame) {
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  SetPrompt(&asked, Tokens(16, 7));
  owner_->OnKvEvents({.name = "a", .incarnation = 1},
                     {.first_sequence = 0,
                      .snapshot = true,
                      .stored = HashChain(asked.spec.hash_root, asked.spec.token_ids),
                      .removed = {}});
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  const FleetWorker& worker = owner_->fleet().workers().at("a");
  EXPECT_EQ(worker.live.prompt_tokens, 1) << "its last token";
  Say(a, {Token(last_submit().attempt, 16, 'x')});
  EXPECT_EQ(worker.live.prompt_tokens, 0);
}

TEST_F(RequestOwnerTest, ChoicesThatHaveEndedAreNoLoad) {
  const SessionId a = AddWorker("a");
  Start(&sink_, 3);
  const FleetWorker& worker = owner_->fleet().workers().at("a");
  EXPECT_EQ(worker.live.sequences, 3);
  Say(a, {Token(last_submit().attempt, 3, 'x', 1, FinishReason::kStop)});
  EXPECT_EQ(worker.live.sequences, 2);
}

TEST_F(RequestOwnerTest, NoMoreIsReportedAsCachedThanThePrompt) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const AttemptId attempt = last_submit().attempt;
  Say(a, {PromptEvent{
              .attempt = attempt, .cached_tokens = 16, .by_prefill = false, .prompt_logprobs = {}},
          Token(attempt, 3, 'x', 0, FinishReason::kLength)});
  EXPECT_EQ(sink_.report.cached_tokens, 3);
}

TEST_F(RequestOwnerTest, ARequestThatAWorkerRefusedCountsAsWaitingAgain) {
  RequestOwnerOptions options;
  options.max_waiting_requests = 2;
  Recreate(options);
  const SessionId a = AddWorker("a");
  RecordingSink sinks[5];
  for (int i = 0; i < 4; ++i) Start(&sinks[i]);
  ASSERT_EQ(outbox_.submits.size(), 4u);
  std::vector<RouterEvent> refusals;
  for (size_t i = 1; i < 4; ++i) {
    refusals.push_back(RefusedEvent{.attempt = outbox_.submits[i].second.attempt,
                                    .status = absl::ResourceExhaustedError("full")});
  }
  Say(a, std::move(refusals));
  EXPECT_EQ(owner_->num_waiting(), 3);
  EXPECT_TRUE(absl::IsResourceExhausted(owner_->Start(MakeRequest(&sinks[4]), now_us_).status()));
  Advance(200'000);  // The window reopens by one: two wait, which is still as many as may.
  EXPECT_EQ(owner_->num_waiting(), 2);
  EXPECT_TRUE(absl::IsResourceExhausted(owner_->Start(MakeRequest(&sinks[4]), now_us_).status()));
  Advance(200'000);
  EXPECT_TRUE(owner_->Start(MakeRequest(&sinks[4]), now_us_).ok());
}

TEST_F(RequestOwnerTest, ARouterThatEndsFailsEverybodyAsUnavailable) {
  RecordingSink waiting;
  const SessionId a = AddWorker("a");
  Start(&sink_);
  Say(a, {Token(last_submit().attempt, 3, 'x')});
  ClientRequest other = MakeRequest(&waiting);
  other.model = "nobody's";
  ASSERT_TRUE(owner_->Start(std::move(other), now_us_).ok());
  owner_->FailAll(absl::UnavailableError("the router is shutting down"), now_us_);
  EXPECT_TRUE(absl::IsUnavailable(sink_.error)) << sink_.error;
  EXPECT_TRUE(absl::IsUnavailable(waiting.error)) << waiting.error;
  EXPECT_EQ(outbox_.cancels.size(), 1u);
  EXPECT_EQ(outcomes(RequestOutcome::kUnavailable), 2u);
  ExpectNothingLive();
}

TEST_F(RequestOwnerTest, NobodyAliveIsUnavailableAfterTheGrace) {
  Start(&sink_);
  Advance(9'999'999);
  EXPECT_FALSE(sink_.ended());
  Advance(1);
  EXPECT_TRUE(absl::IsUnavailable(sink_.error)) << sink_.error;
  ExpectNothingLive();
}

TEST_F(RequestOwnerTest, WhatFitsNoWorkerIsAnInvalidArgument) {
  AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  SetPrompt(&asked, Tokens(2048, 1));
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  EXPECT_FALSE(sink_.ended()) << "never inside Start";
  Advance(1);
  EXPECT_TRUE(absl::IsInvalidArgument(sink_.error)) << sink_.error;
  EXPECT_EQ(sink_.error.message(),
            "a prompt of 2048 tokens and up to 8 generated ones need a worker that holds 2056; the "
            "largest, a, has a context of 2048 and 128 blocks of 16");
  EXPECT_TRUE(outbox_.submits.empty());
}

TEST_F(RequestOwnerTest, AWorkerThatWasNeverSeenMayBeTheLargeOne) {
  owner_->ExpectWorkers({"small:1", "large:1"});
  max_model_tokens_ = 300;
  AddWorker("small");
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.sampling.max_tokens = 298;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  RecordingSink late;
  Advance(9'000'000);
  EXPECT_FALSE(sink_.ended());
  asked = MakeRequest(&late);
  asked.spec.sampling.max_tokens = 298;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  Advance(1'100'000);
  EXPECT_TRUE(absl::IsInvalidArgument(sink_.error)) << sink_.error;
  EXPECT_FALSE(late.ended());
  max_model_tokens_ = 301;
  const SessionId large = AddWorker("large");
  EXPECT_EQ(last_target(), large);
}

TEST_F(RequestOwnerTest, ALargeWorkerThatIsLostIsWaitedForAsLongAsNobodyAlive) {
  AddWorker("large");
  max_model_tokens_ = 300;
  AddWorker("small");
  owner_->OnSessionLost(1, now_us_);
  muted_.insert("large");
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.sampling.max_tokens = 298;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  Advance(9'900'000);
  EXPECT_FALSE(sink_.ended());
  Advance(400'000);
  EXPECT_TRUE(absl::IsUnavailable(sink_.error)) << sink_.error;
  EXPECT_TRUE(outbox_.submits.empty());
}

TEST_F(RequestOwnerTest, WhoeverComesMeanwhileDoesNotMakeItWaitLonger) {
  AddWorker("large");
  owner_->OnSessionLost(1, now_us_);
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.sampling.max_tokens = 298;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  for (const int32_t size : {100, 200}) {
    Advance(3'000'000);
    max_model_tokens_ = size;
    AddWorker(std::to_string(size));
  }
  Advance(3'900'000);
  EXPECT_FALSE(sink_.ended());
  Advance(400'000);
  EXPECT_TRUE(absl::IsUnavailable(sink_.error)) << sink_.error;
}

TEST_F(RequestOwnerTest, WhatWaitsForALargeWorkerDoesNotHoldUpOthers) {
  AddWorker("large");
  max_model_tokens_ = 300;
  const SessionId small = AddWorker("small");
  owner_->OnSessionLost(1, now_us_);
  RecordingSink waits;
  ClientRequest asked = MakeRequest(&waits);
  asked.spec.sampling.max_tokens = 298;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  Start(&sink_);
  ASSERT_EQ(outbox_.submits.size(), 1u);
  EXPECT_EQ(last_target(), small);
  EXPECT_EQ(owner_->num_waiting(), 1);
}

TEST_F(RequestOwnerTest, AnOpenEndIsFixedOnceToWhatTheLargestWorkerHolds) {
  max_model_tokens_ = 300;
  AddWorker("small");
  max_model_tokens_ = 600;
  const SessionId large = AddWorker("large");
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.sampling.max_tokens = 2000;
  asked.spec.sampling.min_tokens = 1000;
  asked.open_ended = true;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  EXPECT_EQ(last_target(), large);
  EXPECT_EQ(last_submit().spec.sampling.max_tokens, 597);
  EXPECT_EQ(last_submit().spec.sampling.min_tokens, 597);
  Say(large, {Token(last_submit().attempt, 3, 'x')});
  // A larger one changes nothing, a smaller one takes nothing of it.
  max_model_tokens_ = 2048;
  const SessionId larger = AddWorker("larger");
  owner_->OnSessionLost(large, now_us_);
  ASSERT_EQ(last_target(), larger);
  EXPECT_EQ(last_submit().spec.sampling.max_tokens, 597);
  owner_->OnSessionLost(larger, now_us_);
  EXPECT_EQ(outbox_.submits.size(), 2u) << "it waits for a worker that holds 600";
  EXPECT_EQ(owner_->num_waiting(), 1);
  for (const std::string name : {"large", "larger"}) {
    muted_.insert(name);
    owner_->OnWatchLost({.name = name, .incarnation = 1});
  }
  Advance(70'000'000);
  EXPECT_EQ(owner_->fleet().workers().size(), 1u) << "the others are forgotten";
  EXPECT_EQ(owner_->num_waiting(), 1) << "until its deadline";
}

TEST_F(RequestOwnerTest, AnOpenEndCountsOnWorkersThatDecode) {
  AddWorker("p", WorkerRole::kPrefill);
  max_model_tokens_ = 300;
  const SessionId d = AddWorker("d", WorkerRole::kDecode);
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.sampling.max_tokens = 2000;
  asked.open_ended = true;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  EXPECT_EQ(last_target(), d);
  EXPECT_EQ(last_submit().spec.sampling.max_tokens, 297);
}

TEST_F(RequestOwnerTest, ContradictoryFactsAreRefused) {
  ClientRequest no_prompt = MakeRequest(&sink_);
  no_prompt.spec.token_ids.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(owner_->Start(std::move(no_prompt), now_us_).status()));
  ClientRequest no_text = MakeRequest(&sink_);
  no_text.make_detokenizer = nullptr;
  no_text.stop_strings = {"x"};
  EXPECT_TRUE(absl::IsInvalidArgument(owner_->Start(std::move(no_text), now_us_).status()));
  ClientRequest no_stop = MakeRequest(&sink_);
  no_stop.stop_strings = {"x", ""};
  EXPECT_TRUE(absl::IsInvalidArgument(owner_->Start(std::move(no_stop), now_us_).status()));
  ClientRequest no_tokens = MakeRequest(&sink_);
  no_tokens.spec.sampling.max_tokens = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(owner_->Start(std::move(no_tokens), now_us_).status()));
  ClientRequest begun = MakeRequest(&sink_);
  begun.spec.prompt_tokens = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(owner_->Start(std::move(begun), now_us_).status()));
  EXPECT_EQ(owner_->num_requests(), 0);
  EXPECT_EQ(outcomes(RequestOutcome::kInvalidArgument), 5u);
}

TEST_F(RequestOwnerTest, NamesAPrefillWorkerAndWhereItIs) {
  RequestOwnerOptions options;
  options.disaggregate = DisaggregatePolicy::kAlways;
  Recreate(options);
  const SessionId p = AddWorker("p", WorkerRole::kPrefill);
  const SessionId d = AddWorker("d", WorkerRole::kDecode);
  Start(&sink_);
  EXPECT_EQ(last_target(), d);
  EXPECT_NE(last_target(), p);
  EXPECT_EQ(last_submit().prefill.worker.name, "p");
  EXPECT_EQ(last_submit().prefill.address, "p:1");
  EXPECT_EQ(last_submit().disaggregate_from_tokens, 1);
}

TEST_F(RequestOwnerTest, AGapInKvEventsRestartsTheWatchOnce) {
  AddWorker("a");
  const KvEvents gap{.first_sequence = 5, .snapshot = false, .stored = {{}}, .removed = {}};
  owner_->OnKvEvents({.name = "a", .incarnation = 1}, gap);
  owner_->OnKvEvents({.name = "a", .incarnation = 1}, gap);
  EXPECT_EQ(outbox_.rewatched.size(), 1u);
}

}  // namespace
}  // namespace tandem
