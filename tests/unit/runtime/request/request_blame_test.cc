// Whose fault a lost worker is: where it was, how it ended, and who got past that place.

#include <gmock/gmock.h>

#include <numeric>

#include "request_fixture.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr int32_t kPrompt = 600;

class RequestBlameTest : public RequestFixture {
 protected:
  // A prompt of kPrompt tokens, on a first worker.
  void StartLong(int32_t choices = 1) {
    Add(1);
    ClientRequest asked = MakeRequest(&sink_, choices);
    Tokens prompt(kPrompt);
    std::iota(prompt.begin(), prompt.end(), 1);
    SetPrompt(&asked, std::move(prompt));
    ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  }
  // The next life of "w", or the first.
  void Add(uint64_t incarnation) { session_ = AddWorker("w", WorkerRole::kHybrid, incarnation); }
  void Begin(int32_t first, int32_t end) {
    RequestFixture::Begin(session_, last_submit().attempt, first, end);
  }
  void Lose() { owner_->OnSessionLost(session_, now_us_); }
  // It begins a chunk, is lost, and its next life comes; false if that does not get the request.
  bool DieAt(int32_t first, int32_t end) {
    Begin(first, end);
    Lose();
    const size_t before = outbox_.submits.size();
    Add(++incarnation_);
    return outbox_.submits.size() > before;
  }
  // The same, and the next life tells how it ended.
  bool EndAt(int32_t first, int32_t end, EndCause cause) {
    ended_lives_.push_back({.incarnation = incarnation_, .cause = cause});
    if (ended_lives_.size() > kMaxEndedLives) ended_lives_.erase(ended_lives_.begin());
    return DieAt(first, end);
  }
  std::string error() const { return std::string(sink_.error.message()); }

  uint64_t incarnation_ = 1;  // The life that runs.
  SessionId session_ = 0;
};

TEST_F(RequestBlameTest, DeathsAtDifferentPlacesAreBadLuck) {
  StartLong();
  for (const int32_t first : {448, 320, 192, 64}) {
    EXPECT_TRUE(DieAt(first, first + 64));
    EXPECT_FALSE(last_submit().spec.runs_alone) << first;
  }
}

TEST_F(RequestBlameTest, FourDeathsAtOnePlaceAreItsEndAndTheErrorNamesThePlace) {
  StartLong();
  EXPECT_TRUE(DieAt(0, 256));
  EXPECT_FALSE(last_submit().spec.runs_alone);
  Begin(0, 200);
  EXPECT_TRUE(DieAt(200, 456));
  EXPECT_TRUE(last_submit().spec.runs_alone);
  Begin(192, 256);
  EXPECT_TRUE(DieAt(256, 320));
  EXPECT_TRUE(last_submit().spec.runs_alone);
  EXPECT_FALSE(DieAt(256, 320));
  EXPECT_EQ(sink_.error.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(error(), HasSubstr("4 workers in a row"));
  EXPECT_THAT(error(), HasSubstr("at token 256 to 383, the last 2 running it alone"));
  EXPECT_THAT(error(), HasSubstr("for a reason not known"));
  EXPECT_EQ(outcomes(RequestOutcome::kPoison), 1u);
  ExpectNothingLive();
}

TEST_F(RequestBlameTest, WhoGetsPastAPlaceIsNotWhatMadeItDeadly) {
  StartLong();
  EXPECT_TRUE(DieAt(0, 64));
  EXPECT_TRUE(DieAt(0, 64));
  ASSERT_TRUE(last_submit().spec.runs_alone);
  Begin(64, 128);  // The last word of a worker may be lost: this may still be the place.
  EXPECT_TRUE(DieAt(64, 128));
  ASSERT_TRUE(last_submit().spec.runs_alone);
  Begin(0, 64);
  Begin(64, 128);
  Begin(128, 192);
  EXPECT_TRUE(DieAt(192, 256));
  EXPECT_FALSE(last_submit().spec.runs_alone) << "what is remembered is one death";
  for (int death = 0; death < 20; ++death) {
    Begin(0, 64);
    EXPECT_TRUE(DieAt(256 + 64 * (death % 2 * 2), 320 + 64 * (death % 2 * 2))) << death;
    Begin(0, 64);
    Begin(384 + 128, 600);  // Past all of them.
  }
  EXPECT_FALSE(sink_.ended());
}

class FailedStepTest : public RequestFixture {
 protected:
  // The step that ran the last attempt fails.
  void Fail(bool by_prefill = false) {
    Say(last_target(), {EndedEvent{.attempt = last_submit().attempt,
                                   .status = absl::AbortedError("a step failed"),
                                   .by_prefill = by_prefill}});
  }
};

TEST_F(FailedStepTest, ItsStreamsGoOnElsewhereAndItsWorkerRests) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  Say(a, {Token(last_submit().attempt, 3, 'x')});
  const SessionId b = AddWorker("b");
  Fail();
  ASSERT_EQ(outbox_.submits.size(), 2u);
  EXPECT_EQ(last_target(), b);
  EXPECT_EQ(last_submit().spec.token_ids, (std::vector<int32_t>{1, 2, 3, 'x'}));
  EXPECT_EQ(resumes(ResumeReason::kStepFailed), 1u);
  EXPECT_TRUE(outbox_.closed.empty()) << "its worker goes on";
  Say(b, {Token(last_submit().attempt, 4, 'y', 0, FinishReason::kLength)});
  EXPECT_TRUE(sink_.done);
  RecordingSink sinks[12];
  for (int i = 0; i < 6; ++i) {
    Start(&sinks[i]);
    EXPECT_EQ(last_target(), b) << "a rests";
  }
  Advance(200'000);
  Start(&sinks[6]);
  EXPECT_EQ(last_target(), a);
  // It fails again: it rests for twice as long.
  Fail();
  Advance(200'000);
  Start(&sinks[7]);
  EXPECT_EQ(last_target(), b);
  Advance(200'000);
  Start(&sinks[8]);
  EXPECT_EQ(last_target(), a);
  // Until it is seen to compute.
  Say(a, {Token(last_submit().attempt, 3, 'x')});
  Fail();
  Advance(200'000);
  Start(&sinks[9]);
  EXPECT_EQ(last_target(), a);
}

TEST_F(FailedStepTest, AStreamGoesBackToWhereItFailedOnlyIfNobodyElseCanTakeIt) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const SessionId b = AddWorker("b");
  RecordingSink other;
  Fail();
  EXPECT_EQ(last_target(), b);
  Start(&other);
  Say(b, {RefusedEvent{.attempt = outbox_.submits[1].second.attempt,
                       .status = absl::ResourceExhaustedError("full")}});
  Advance(150'000);
  const size_t before = outbox_.submits.size();
  muted_.insert("b");  // Its window does not grow.
  Advance(600'000);
  EXPECT_EQ(outbox_.submits.size(), before) << "b is only full";
  owner_->OnSessionLost(b, now_us_);
  EXPECT_EQ(last_target(), a);
}

TEST_F(FailedStepTest, AStreamThatAvoidsAWorkerHoldsUpNobodyElse) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const SessionId b = AddWorker("b");
  RecordingSink other, next;
  Fail();
  Start(&other);
  Say(b, {RefusedEvent{.attempt = outbox_.submits[1].second.attempt,
                       .status = absl::ResourceExhaustedError("full")}});
  muted_.insert("b");  // Its window does not grow.
  Advance(400'000);
  Start(&next);
  EXPECT_EQ(owner_->num_waiting(), 1);
  EXPECT_EQ(last_target(), a);
}

TEST_F(FailedStepTest, AStreamThatGotPastThePlaceOfAFailedStepAvoidsItsWorkerNoMore) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  Begin(a, last_submit().attempt, 0, 1);
  const SessionId b = AddWorker("b");
  Fail();
  ASSERT_EQ(last_target(), b);
  Begin(b, last_submit().attempt, 0, 1);
  Begin(b, last_submit().attempt, 1, 2);
  const SessionId c = AddWorker("c");
  RecordingSink other;
  Start(&other);
  ASSERT_EQ(last_target(), c) << "a rests, and b has one already";
  Advance(200'000);
  owner_->OnSessionLost(b, now_us_);
  EXPECT_EQ(last_target(), a) << "which has the least to do";
}

// The step of the decode worker that would have drawn it has not come yet.
TEST_F(FailedStepTest, ATokenOfThePrefillWorkerIsNoSignThatTheDecodeWorkerWorks) {
  const SessionId d = AddPair();
  owner_->OnSessionLost(1, now_us_);  // The prefill worker only computes prompts.
  Start(&sink_);
  Fail();
  Advance(200'000);
  ASSERT_EQ(outbox_.submits.size(), 2u);
  Say(d, {Token(last_submit().attempt, 3, 'x')});
  Fail();
  Advance(200'000);
  EXPECT_EQ(outbox_.submits.size(), 2u) << "twice as long";
  Advance(200'000);
  ASSERT_EQ(outbox_.submits.size(), 3u);
  Say(d, {Token(last_submit().attempt, 4, 'y'), Token(last_submit().attempt, 5, 'z')});
  Fail();
  Advance(200'000);
  EXPECT_EQ(outbox_.submits.size(), 4u) << "its own token is";
}

TEST_F(FailedStepTest, APrefillWorkerWhosePromptCameWorksAgain) {
  const SessionId d = AddPair();
  RecordingSink sinks[3];
  const auto at_p = [&](RecordingSink* sink) {
    Start(sink);
    return last_submit().prefill.worker.name == "p";
  };
  ASSERT_TRUE(at_p(&sinks[0]));
  Fail(/*by_prefill=*/true);
  Advance(200'000);
  ASSERT_TRUE(at_p(&sinks[1]));
  Say(d, {PromptEvent{.attempt = last_submit().attempt,
                      .cached_tokens = 0,
                      .by_prefill = true,
                      .prompt_logprobs = {}}});
  Fail(/*by_prefill=*/true);
  Advance(200'000);
  EXPECT_TRUE(at_p(&sinks[2])) << "it rests as briefly as the first time";
}

TEST_F(FailedStepTest, AWorkerWithoutAPrefillWorkerHasNobodyElseToBlame) {
  AddWorker("a");
  Start(&sink_);
  const SessionId b = AddWorker("b");
  Fail(/*by_prefill=*/true);
  EXPECT_EQ(last_target(), b);
  RecordingSink sinks[4];
  for (RecordingSink& sink : sinks) {
    Start(&sink);
    EXPECT_EQ(last_target(), b) << "a rests";
  }
}

TEST_F(FailedStepTest, HowTheProcessEndsLaterDoesNotExcuseAFailedStep) {
  supervised_ = true;
  SessionId a = AddWorker("a");
  Start(&sink_);
  for (int failures = 1; failures <= kDeathsBeforeRunningAlone; ++failures) {
    Fail();
    Advance(2'000'000);
  }
  ASSERT_TRUE(last_submit().spec.runs_alone);
  ended_lives_ = {{.incarnation = 1, .cause = EndCause::kOutside}};
  a = AddWorker("a", WorkerRole::kHybrid, 2);
  EXPECT_EQ(last_target(), a);
  EXPECT_TRUE(last_submit().spec.runs_alone);
}

TEST_F(FailedStepTest, OneWhoseStepsFailFourTimesAtOnePlaceEndsNotMore) {
  AddWorker("a");
  Start(&sink_);
  for (int failures = 1; failures < kDeathsBeforePoison; ++failures) {
    EXPECT_EQ(last_submit().spec.runs_alone, failures > kDeathsBeforeRunningAlone);
    Fail();
    EXPECT_FALSE(sink_.ended()) << failures;
    Advance(2'000'000);
    ASSERT_EQ(outbox_.submits.size(), static_cast<size_t>(failures) + 1);
  }
  Fail();
  EXPECT_EQ(sink_.error.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(sink_.error.message()), HasSubstr("a step failed, a step failed"));
  EXPECT_EQ(outcomes(RequestOutcome::kPoison), 1u);
  ExpectNothingLive();
}

TEST_F(FailedStepTest, OfThePrefillWorkerItIsThePrefillWorkerThatRests) {
  const SessionId d = AddPair();
  Start(&sink_);
  ASSERT_EQ(last_submit().prefill.worker.name, "p");
  Fail(/*by_prefill=*/true);
  ASSERT_EQ(outbox_.submits.size(), 2u);
  EXPECT_EQ(last_target(), d);
  EXPECT_EQ(last_submit().prefill.address, "");
  Advance(200'000);
  RecordingSink other;
  Start(&other);
  EXPECT_EQ(last_submit().prefill.worker.name, "p");
}

TEST_F(RequestBlameTest, WhoeverNeverSaidThatItBeganMayHaveDiedAnywhere) {
  StartLong();
  Lose();
  Add(++incarnation_);
  EXPECT_FALSE(last_submit().spec.runs_alone);
  EXPECT_TRUE(DieAt(512, 576));
  EXPECT_TRUE(last_submit().spec.runs_alone) << "the one before has not been heard of at all";
}

TEST_F(RequestBlameTest, WhatWasComputedOnceIsNotWhereAnUnheardWorkerDied) {
  StartLong();
  EXPECT_TRUE(DieAt(128, 192));
  Begin(256, 320);
  EXPECT_TRUE(DieAt(320, 384));
  Lose();  // Unheard: after token 320.
  Add(++incarnation_);
  ASSERT_TRUE(last_submit().spec.runs_alone);
  EXPECT_TRUE(DieAt(0, 64));
  EXPECT_TRUE(DieAt(0, 64));
  EXPECT_TRUE(DieAt(192, 256)) << "that makes two at the beginning, two after token 320";
}

TEST_F(RequestBlameTest, WhatWasComputedOnceStaysSoThoughALaterAttemptBeganAnew) {
  StartLong();
  Begin(320, 384);
  Say(session_,
      {EndedEvent{.attempt = last_submit().attempt, .status = absl::UnavailableError("draining")}});
  Add(++incarnation_);
  EXPECT_TRUE(DieAt(0, 64));
  Lose();  // Unheard: after token 320.
  Add(++incarnation_);
  EXPECT_FALSE(last_submit().spec.runs_alone);
}

TEST_F(RequestBlameTest, ChoicesThatDivergeRememberHowFarTheirPromptWas) {
  StartLong(/*choices=*/2);
  const AttemptId both = last_submit().attempt;
  Begin(512, kPrompt);
  Say(session_, {Token(both, kPrompt, 'a', 0), Token(both, kPrompt, 'b', 1),
                 EndedEvent{.attempt = both, .status = absl::UnavailableError("draining")}});
  Add(++incarnation_);
  ASSERT_EQ(outbox_.submits.size(), 3u);
  Lose();  // Unheard: each after token 512.
  Add(++incarnation_);
  ASSERT_EQ(outbox_.submits.size(), 5u);
  for (const size_t i : {3, 4}) {
    RequestFixture::Begin(session_, outbox_.submits[i].second.attempt, 0, 64);
  }
  Lose();
  Add(++incarnation_);
  ASSERT_EQ(outbox_.submits.size(), 7u);
  for (const size_t i : {5, 6}) EXPECT_FALSE(outbox_.submits[i].second.spec.runs_alone) << i;
}

TEST_F(RequestBlameTest, AnAttemptThatBeganNothingIsNotWhereTheOneBeforeItWas) {
  StartLong();
  Begin(448, 512);
  Lose();
  Advance(200'000);  // It lives: only its connection was lost.
  session_ = OpenSession({.name = "w", .incarnation = 1});
  Lose();  // Unheard: after token 448.
  Add(++incarnation_);
  EXPECT_FALSE(last_submit().spec.runs_alone);
  EXPECT_TRUE(DieAt(576, kPrompt));
  EXPECT_TRUE(last_submit().spec.runs_alone);
}

TEST_F(RequestBlameTest, AHeartbeatThatWasOnItsWayIsNoSignOfLife) {
  session_ = AddWorker("w1");
  Start(&sink_);
  Lose();
  now_us_ += 50'000;
  owner_->OnHeartbeat({.name = "w1", .incarnation = 1}, {}, /*draining=*/false, now_us_);
  session_ = AddWorker("w2");
  Lose();
  AddWorker("w3");
  EXPECT_TRUE(last_submit().spec.runs_alone);
}

TEST_F(RequestBlameTest, ChoicesDiedWhereTheOneThatIsLeastFarWas) {
  Add(1);
  Start(&sink_, 2);
  const AttemptId both = last_submit().attempt;
  Say(session_, {Token(both, 3, 'a', 0), Token(both, 3, 'b', 1), Token(both, 4, 'a', 0),
                 Token(both, 5, 'a', 0)});
  Lose();
  Add(++incarnation_);
  ASSERT_EQ(outbox_.submits.size(), 3u);
  RequestFixture::Begin(session_, outbox_.submits[1].second.attempt, 3, 4);
  RequestFixture::Begin(session_, outbox_.submits[2].second.attempt, 3, 4);
  Lose();
  Add(++incarnation_);
  ASSERT_EQ(last_submit().spec.choices, std::vector<int32_t>{0});
  Say(session_, {Token(last_submit().attempt, 6, 'a', 0)});
  ASSERT_EQ(last_submit().spec.choices, std::vector<int32_t>{1});
  EXPECT_TRUE(last_submit().spec.runs_alone);
}

TEST_F(RequestBlameTest, ADecodingStreamDiedAtItsLastTokenOrAfter) {
  StartLong();
  Say(session_, {Token(last_submit().attempt, kPrompt, 'x')});
  Lose();
  Add(++incarnation_);
  EXPECT_TRUE(DieAt(0, 256));
  EXPECT_FALSE(last_submit().spec.runs_alone);
  Begin(256, 512);
  EXPECT_TRUE(DieAt(512, kPrompt + 1));
  EXPECT_TRUE(last_submit().spec.runs_alone) << "which is computed first by the next attempt";
}

TEST_F(RequestBlameTest, AKillFromOutsideIsNobodysDeed) {
  supervised_ = true;
  StartLong();
  for (int death = 0; death < 100; ++death) {
    EXPECT_TRUE(EndAt(0, 64, EndCause::kOutside));
    EXPECT_FALSE(last_submit().spec.runs_alone) << death;
  }
  EXPECT_FALSE(sink_.ended());
}

// Its next life is here before its session is seen to end.
TEST_F(RequestBlameTest, AKillFromOutsideThatIsToldBeforeTheSessionEndsIsNobodysDeed) {
  supervised_ = true;
  StartLong();
  EXPECT_TRUE(EndAt(0, 64, EndCause::kCrash));
  Begin(0, 64);
  ended_lives_.push_back({.incarnation = incarnation_, .cause = EndCause::kOutside});
  Add(++incarnation_);
  EXPECT_EQ(resumes(ResumeReason::kRestarted), 1u);
  EXPECT_EQ(last_target(), session_);
  EXPECT_FALSE(last_submit().spec.runs_alone) << "one crash is all that counts";
}

TEST_F(RequestBlameTest, ACauseThatIsToldBeforeTheSessionEndsIsNamed) {
  supervised_ = true;
  StartLong();
  for (int death = 1; death <= 4; ++death) {
    Begin(0, 64);
    ended_lives_.push_back({.incarnation = incarnation_, .cause = EndCause::kCrash});
    Add(++incarnation_);
    ended_lives_.clear();  // It is told once.
  }
  EXPECT_EQ(outcomes(RequestOutcome::kPoison), 1u);
  EXPECT_THAT(error(), HasSubstr("crash, crash, crash, crash"));
}

TEST_F(RequestBlameTest, KillsMayBeFasterThanRegistrations) {
  supervised_ = true;
  StartLong();
  for (int death = 0; death < 10; ++death) {
    const uint64_t unheard = incarnation_ + 1;
    ended_lives_ = {{.incarnation = incarnation_, .cause = EndCause::kOutside},
                    {.incarnation = unheard, .cause = EndCause::kCrash}};
    incarnation_ = unheard;
    EXPECT_TRUE(DieAt(0, 64));
    EXPECT_FALSE(last_submit().spec.runs_alone) << death;
  }
}

TEST_F(RequestBlameTest, UntilTheEndIsToldADeathMakesASuspectAndNoMore) {
  supervised_ = true;
  session_ = AddWorker("a");
  Start(&sink_);
  for (int death = 1; death <= 4; ++death) {
    EXPECT_EQ(last_submit().spec.runs_alone, death > 2) << death;
    Lose();
    if (death < 4) session_ = AddWorker("w" + std::to_string(death));
  }
  AddWorker("idle");
  muted_ = {"a", "w1", "w2", "w3"};
  Advance(10'000'000);
  EXPECT_EQ(owner_->num_waiting(), 1) << "they are gone, and how is not told";
  muted_ = {};
  for (const std::string name : {"a", "w1", "w2"}) {
    ended_lives_ = {{.incarnation = 1, .cause = EndCause::kCrash}};
    AddWorker(name, WorkerRole::kHybrid, 2);
    EXPECT_FALSE(sink_.ended()) << name;
    EXPECT_EQ(owner_->num_waiting(), 1) << name;
  }
  ended_lives_ = {{.incarnation = 1, .cause = EndCause::kMemory}};
  AddWorker("w3", WorkerRole::kHybrid, 2);
  EXPECT_EQ(outcomes(RequestOutcome::kPoison), 1u);
  EXPECT_THAT(error(), HasSubstr("crash, crash, crash, memory"));
}

TEST_F(RequestBlameTest, OneKillFromOutsideAmongThemAndItGoesOn) {
  supervised_ = true;
  session_ = AddWorker("a");
  Start(&sink_);
  for (int death = 1; death <= 4; ++death) {
    Lose();
    if (death < 4) session_ = AddWorker("w" + std::to_string(death));
  }
  const size_t before = outbox_.submits.size();
  ended_lives_ = {{.incarnation = 1, .cause = EndCause::kOutside}};
  session_ = AddWorker("w1", WorkerRole::kHybrid, 2);
  ASSERT_EQ(outbox_.submits.size(), before + 1);
  EXPECT_TRUE(last_submit().spec.runs_alone) << "three are left";
  Say(session_, {Token(last_submit().attempt, 3, 'x', 0, FinishReason::kLength)});
  EXPECT_TRUE(sink_.done);
}

TEST_F(RequestBlameTest, WhoseNextLifeNeverComesHasNotTold) {
  supervised_ = true;
  session_ = AddWorker("a");
  Start(&sink_);
  for (int death = 1; death <= 4; ++death) {
    Lose();
    owner_->OnWatchLost(
        {.name = death == 1 ? "a" : "w" + std::to_string(death - 1), .incarnation = 1});
    if (death < 4) session_ = AddWorker("w" + std::to_string(death));
  }
  muted_ = {"a", "w1", "w2", "w3"};
  Advance(Fleet::kForgetAfterUs - 2'000'000);
  EXPECT_FALSE(sink_.ended());
  Advance(4'000'000);
  EXPECT_EQ(outcomes(RequestOutcome::kPoison), 1u);
  EXPECT_THAT(error(), HasSubstr("for a reason not known"));
}

TEST_F(RequestBlameTest, AKillThatEndsAHungWorkerExcusesNobody) {
  supervised_ = true;
  StartLong();
  for (int death = 1; death <= 4; ++death) {
    Begin(64, 128);
    WorkerLoad stalled;
    stalled.has_work = true;
    stalled.since_progress_us = 2'000'000;
    owner_->OnHeartbeat({.name = "w", .incarnation = incarnation_}, stalled, false, now_us_);
    owner_->Tick(now_us_);
    ended_lives_.push_back({.incarnation = incarnation_, .cause = EndCause::kOutside});
    Add(++incarnation_);
  }
  EXPECT_EQ(outcomes(RequestOutcome::kPoison), 1u);
  EXPECT_THAT(error(), HasSubstr("hung, hung, hung, hung"));
}

TEST_F(RequestBlameTest, OutsideKillsInBetweenDoNotSaveAPoisonousRequest) {
  supervised_ = true;
  StartLong();
  int deaths = 0;
  while (!sink_.ended() && deaths < 10) {
    // Twice it is killed on its way to the deadly token, then it gets there.
    EXPECT_TRUE(EndAt(0, 64, EndCause::kOutside));
    Begin(0, 64);
    EXPECT_TRUE(EndAt(64, 128, EndCause::kOutside));
    for (int32_t first = 0; first < 448; first += 64) Begin(first, first + 64);
    EndAt(448, 512, EndCause::kCrash);
    ++deaths;
  }
  EXPECT_EQ(deaths, 4);
  EXPECT_THAT(error(), HasSubstr("at token 448 to"));
}

TEST_F(RequestBlameTest, OfManyDeathsThoseAreKeptThatAVerdictNeeds) {
  StartLong();
  EXPECT_TRUE(DieAt(512, 520));
  for (int32_t first = 480; first > 40; first -= 20) {  // Each nearer to the beginning.
    EXPECT_TRUE(DieAt(first, first + 8));
    EXPECT_FALSE(last_submit().spec.runs_alone) << first;
  }
  EXPECT_TRUE(DieAt(512, 520));
  EXPECT_TRUE(last_submit().spec.runs_alone);
  EXPECT_TRUE(DieAt(512, 520));
  EXPECT_FALSE(DieAt(512, 520));
  EXPECT_EQ(outcomes(RequestOutcome::kPoison), 1u);
}

TEST_F(RequestBlameTest, OfTooManyDeathsTheOneGoesThatCannotBeFarOn) {
  supervised_ = true;
  StartLong();
  for (int32_t first = 480; first > 340; first -= 20) EXPECT_TRUE(DieAt(first, first + 8));
  Begin(20, 28);  // It hangs there, or after what it began since.
  WorkerLoad stalled;
  stalled.has_work = true;
  stalled.since_progress_us = 2'000'000;
  owner_->OnHeartbeat({.name = "w", .incarnation = incarnation_}, stalled, false, now_us_);
  owner_->Tick(now_us_);
  Add(++incarnation_);
  EXPECT_TRUE(DieAt(20, 28));
  EXPECT_TRUE(last_submit().spec.runs_alone) << "two were there";
}

TEST_F(RequestBlameTest, AFailedStepOfAPrefillWorkerMayBeLaterThanWhatIsKnown) {
  const SessionId d = AddPair();
  const SessionId p = owner_->fleet().workers().at("p").session;
  ClientRequest asked = MakeRequest(&sink_);
  SetPrompt(&asked, Tokens(kPrompt, 1));
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  const AttemptId first = last_submit().attempt;
  RequestFixture::Begin(p, first, 0, 64);
  Say(d, {EndedEvent{
             .attempt = first, .status = absl::AbortedError("a step failed"), .by_prefill = true}});
  RequestFixture::Begin(d, last_submit().attempt, 128, 192);
  owner_->OnSessionLost(d, now_us_);
  AddWorker("e", WorkerRole::kDecode);
  EXPECT_TRUE(last_submit().spec.runs_alone);
}

TEST_F(RequestBlameTest, APrefillWorkerSaysWhereItIsToo) {
  const SessionId d = AddPair();
  const SessionId p = owner_->fleet().workers().at("p").session;
  Start(&sink_);
  const AttemptId first = last_submit().attempt;
  RequestFixture::Begin(p, first, 2, 3);
  Say(d, {EndedEvent{.attempt = first, .status = absl::UnavailableError("lost")}});
  ASSERT_TRUE(last_submit().prefill.address.empty());
  RequestFixture::Begin(d, last_submit().attempt, 0, 1);
  owner_->OnSessionLost(d, now_us_);
  const SessionId e = AddWorker("e", WorkerRole::kDecode);
  EXPECT_FALSE(last_submit().spec.runs_alone) << "the prefill worker was further";
  RequestFixture::Begin(e, last_submit().attempt, 2, 3);
  owner_->OnSessionLost(e, now_us_);
  AddWorker("f", WorkerRole::kDecode);
  EXPECT_TRUE(last_submit().spec.runs_alone);
}

TEST_F(RequestBlameTest, WhoTellsOfAPrefillWorkersEndMayOvertakeItsLastWord) {
  const SessionId d = AddPair();
  const SessionId p = owner_->fleet().workers().at("p").session;
  ClientRequest asked = MakeRequest(&sink_);
  SetPrompt(&asked, Tokens(kPrompt, 1));
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  const AttemptId first = last_submit().attempt;
  RequestFixture::Begin(p, first, 0, 64);
  Say(d, {EndedEvent{.attempt = first, .status = absl::UnavailableError("lost")}});
  RequestFixture::Begin(p, first, 512, 576);
  RequestFixture::Begin(d, last_submit().attempt, 512, 576);
  owner_->OnSessionLost(d, now_us_);
  AddWorker("e", WorkerRole::kDecode);
  EXPECT_TRUE(last_submit().spec.runs_alone);
}

TEST_F(RequestBlameTest, ADecodeWorkerThatWaitsForAPromptIsNotWhereThePromptIs) {
  const SessionId d = AddPair();
  const SessionId p = owner_->fleet().workers().at("p").session;
  Start(&sink_);
  RequestFixture::Begin(p, last_submit().attempt, 0, 1);
  RequestFixture::Begin(p, last_submit().attempt, 1, 2);
  owner_->OnSessionLost(d, now_us_);  // At token 1 or after it, since it had begun none.
  muted_ = {"p", "d"};
  Advance(2'000'000);
  const SessionId e = AddWorker("e", WorkerRole::kDecode);
  RequestFixture::Begin(e, last_submit().attempt, 0, 1);
  RequestFixture::Begin(e, last_submit().attempt, 1, 2);
  owner_->OnSessionLost(e, now_us_);
  AddWorker("f", WorkerRole::kDecode);
  EXPECT_TRUE(last_submit().spec.runs_alone);
}

TEST_F(RequestBlameTest, ChunksOfOthersAndOfEarlierAttemptsChangeNothing) {
  StartLong();
  const AttemptId attempt = last_submit().attempt;
  AttemptId other = attempt;
  other.request.router_incarnation = 7;
  RequestFixture::Begin(session_, other, 0, 64);
  EXPECT_EQ(owner_->counters().stale_events, 0u) << "a prefill worker tells every router";
  EXPECT_TRUE(DieAt(64, 128));
  RequestFixture::Begin(session_, attempt, 512, 576);
  EXPECT_EQ(owner_->counters().stale_events, 1u);
  EXPECT_TRUE(DieAt(64, 128));
  EXPECT_TRUE(last_submit().spec.runs_alone) << "the earlier attempt did not get past it";
}

TEST_F(RequestBlameTest, AChunkBeyondTheTokensIsAProtocolError) {
  StartLong();
  Begin(kPrompt - 1, kPrompt);
  EXPECT_TRUE(outbox_.closed.empty());
  Begin(kPrompt, kPrompt + 1);
  EXPECT_EQ(outbox_.closed, (std::vector<SessionId>{session_}));
  EXPECT_EQ(owner_->counters().protocol_errors, 1u);
}

TEST_F(RequestBlameTest, ChoicesThatDivergeTakeTheirDeathsAlong) {
  session_ = AddWorker("w");
  Start(&sink_, 2);
  Say(session_, {Token(last_submit().attempt, 3, 'a', 0), Token(last_submit().attempt, 3, 'b', 1)});
  Lose();
  Add(++incarnation_);
  const size_t before = outbox_.submits.size();
  ASSERT_FALSE(last_submit().spec.runs_alone);
  Lose();
  Add(++incarnation_);
  ASSERT_GT(outbox_.submits.size(), before);
  EXPECT_TRUE(last_submit().spec.runs_alone)
      << "one died with both, one with this choice among others";
  AddWorker("idle");
  EXPECT_EQ(last_submit().spec.choices, std::vector<int32_t>{0}) << "they are tried one by one";
  Say(session_, {Token(last_submit().attempt, 4, 'a', 0)});
  EXPECT_EQ(last_submit().spec.choices, std::vector<int32_t>{1});
  EXPECT_TRUE(last_submit().spec.runs_alone) << "so it is with the other one";
}

}  // namespace
}  // namespace tandem
