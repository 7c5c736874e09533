#include "runtime/fleet/fleet.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>

namespace tandem {
namespace {

constexpr LivenessTimes kTimes;

WorkerRegistration Registration(const std::string& name, uint64_t incarnation,
                                WorkerRole role = WorkerRole::kDecode) {
  WorkerRegistration r;
  r.worker = {.name = name, .incarnation = incarnation};
  r.role = role;
  r.model = "m";
  r.terms.kv_class = "kv";
  r.terms.numerics_id = "n";
  r.kv.block_tokens = 16;
  r.max_model_tokens = 1024;
  r.kv.num_blocks = 64;
  r.max_sequences = 1000;
  return r;
}

class FleetTest : public testing::Test {
 protected:
  const FleetWorker& worker() const { return fleet_.workers().at("a"); }
  void RegisterWithSession() {
    EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 1), 0).ok());
    EXPECT_TRUE(fleet_.OnSessionUp(id_, 7));
  }

  const WorkerId id_{.name = "a", .incarnation = 1};
  Fleet fleet_{kTimes};
};

TEST_F(FleetTest, WorkNeedsASession) {
  EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 1), 0).ok());
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, 0));
  EXPECT_TRUE(fleet_.OnSessionUp(id_, 7));
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 0));
  EXPECT_EQ(fleet_.OnSessionLost(7), id_);
  EXPECT_EQ(fleet_.OnSessionLost(7), std::nullopt);
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, 0));
}

TEST_F(FleetTest, AWindowOffersTheContextWhereThePoolHoldsIt) {
  WorkerRegistration registration = Registration("a", 1);
  registration.kv.num_blocks = 20;
  const auto offers = [&](int64_t sequence_blocks) {
    registration.sequence_blocks = sequence_blocks;
    EXPECT_TRUE(fleet_.OnRegistration("addr:1", registration, 0).ok());
    return std::pair(worker().offered_tokens(), worker().offered_prompt_tokens());
  };
  EXPECT_EQ(offers(0), std::pair(int64_t{320}, int64_t{320}));  // A build that does not say.
  EXPECT_EQ(offers(21), std::pair(int64_t{320}, int64_t{320}));
  EXPECT_EQ(offers(20), std::pair(int64_t{1024}, int64_t{320}));
  registration.kv.num_blocks = 64;
  EXPECT_EQ(offers(20), std::pair(int64_t{1024}, int64_t{1023}));
}

TEST_F(FleetTest, TheLargestServesTheModelAndDecodesUnlessAnyRoleWillDo) {
  EXPECT_EQ(fleet_.Largest("m", /*any_role=*/true), nullptr);
  const auto add = [this](const std::string& name, const std::string& model, int32_t tokens,
                          WorkerRole role) {
    WorkerRegistration registration = Registration(name, 1, role);
    registration.model = model;
    registration.max_model_tokens = tokens;
    EXPECT_TRUE(fleet_.OnRegistration(name + ":1", registration, 0).ok());
  };
  add("d", "m", 100, WorkerRole::kDecode);
  add("h", "m", 200, WorkerRole::kHybrid);
  add("p", "m", 300, WorkerRole::kPrefill);
  add("z", "other", 400, WorkerRole::kDecode);
  ASSERT_NE(fleet_.Largest("m", /*any_role=*/false), nullptr);
  EXPECT_EQ(fleet_.Largest("m", /*any_role=*/false)->id().name, "h");
  EXPECT_EQ(fleet_.Largest("m", /*any_role=*/true)->id().name, "p");
}

TEST_F(FleetTest, SilenceFirstStopsNewWorkThenMovesStreams) {
  RegisterWithSession();
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, kTimes.no_new_work_after_us - 1));
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, kTimes.no_new_work_after_us));
  EXPECT_EQ(fleet_.FaultOf(worker(), kTimes.move_streams_after_us - 1), WorkerFault::kNone);
  EXPECT_EQ(fleet_.FaultOf(worker(), kTimes.move_streams_after_us), WorkerFault::kSilent);
}

TEST_F(FleetTest, ALifeTellsHowEarlierOnesOfItsNameEnded) {
  RegisterWithSession();
  EXPECT_EQ(fleet_.CauseOf(id_), std::nullopt);
  WorkerRegistration next = Registration("a", 3);
  next.ended_lives = {{.incarnation = 1, .cause = EndCause::kCrash},
                      {.incarnation = 2, .cause = EndCause::kOutside}};
  EXPECT_TRUE(fleet_.OnRegistration("addr:1", next, 0).ok());
  EXPECT_EQ(fleet_.CauseOf(id_), EndCause::kCrash);
  EXPECT_EQ(fleet_.CauseOf({.name = "a", .incarnation = 2}), EndCause::kOutside);
  EXPECT_EQ(fleet_.CauseOf({.name = "a", .incarnation = 4}), std::nullopt);
  EXPECT_EQ(fleet_.CauseOf({.name = "b", .incarnation = 1}), std::nullopt);
}

TEST_F(FleetTest, TheRoutersOwnPauseIsNobodysSilence) {
  RegisterWithSession();
  fleet_.OnOwnPause(10'000'000, 10'000'000);
  EXPECT_EQ(fleet_.FaultOf(worker(), 10'000'000), WorkerFault::kNone);
}

TEST_F(FleetTest, AfterTheRoutersOwnPauseNobodyIsHeardInTheFuture) {
  RegisterWithSession();
  fleet_.OnOwnPause(10'000'000, 9'000'000);
  EXPECT_EQ(worker().heard_us, 9'000'000);
}

TEST_F(FleetTest, ASecondWorkerOfTheNameIsRefusedWhileTheFirstLives) {
  RegisterWithSession();
  const auto refused = fleet_.OnRegistration("addr:2", Registration("a", 2), 100);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(worker().id(), id_);
  EXPECT_EQ(worker().session, 7u);
  // It may have moved: once it is not heard any more, or has gone, the name is free.
  const auto later =
      fleet_.OnRegistration("addr:2", Registration("a", 2), kTimes.no_new_work_after_us);
  ASSERT_TRUE(later.ok());
  ASSERT_EQ(later->size(), 1u);
  EXPECT_EQ(later->front().worker, id_);
  EXPECT_TRUE(fleet_.OnWatchLost({.name = "a", .incarnation = 2}));
  EXPECT_TRUE(
      fleet_.OnRegistration("addr:3", Registration("a", 3), kTimes.no_new_work_after_us).ok());
}

TEST_F(FleetTest, AWorkerIsWatchedAtOneOfItsAddresses) {
  fleet_.Expect({"addr:1", "addr:2"});
  RegisterWithSession();
  EXPECT_TRUE(fleet_.OnSnapshot(id_));
  const auto refused = fleet_.OnRegistration("addr:2", Registration("a", 1), 100);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(worker().address, "addr:1");
  EXPECT_TRUE(fleet_.KnownCompletely()) << "nothing is to come from the other";
  EXPECT_TRUE(fleet_.OnWatchLost(id_));
  EXPECT_TRUE(fleet_.OnRegistration("addr:2", Registration("a", 1), 100).ok());
  EXPECT_EQ(worker().address, "addr:2");
}

TEST_F(FleetTest, AReservedWorkerTakesNothingAndWhoRunsAloneWantsNoPromptBesideIt) {
  RegisterWithSession();
  fleet_.AddLive(id_, {.sequences = 1, .prompt_tokens = 100});
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 0));
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), true, 0));
  fleet_.AddLive(id_, {.prompt_tokens = -100});
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), true, 0)) << "who decodes disturbs nobody";
  fleet_.Reserve(id_, true);
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, 0));
  EXPECT_FALSE(fleet_.MayPrefill(worker(), 0));
  EXPECT_TRUE(fleet_.Healthy(worker(), 0));
  fleet_.Reserve(id_, false);
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 0));
}

TEST_F(FleetTest, WorkWithoutProgressIsAStallEvenWithHeartbeats) {
  RegisterWithSession();
  WorkerLoad load;
  load.since_progress_us = kTimes.move_streams_after_us;
  fleet_.OnHeartbeat(id_, load, false, 100);
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 100)) << "idle engines make no progress";
  EXPECT_EQ(fleet_.FaultOf(worker(), 100), WorkerFault::kNone);
  load.has_work = true;
  fleet_.OnHeartbeat(id_, load, false, 100);
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, 100));
  EXPECT_EQ(fleet_.FaultOf(worker(), 100), WorkerFault::kStalled);
  load.since_progress_us = 0;
  fleet_.OnHeartbeat(id_, load, false, 100);
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 100)) << "it is busy, and that is all";
  EXPECT_EQ(fleet_.FaultOf(worker(), 100), WorkerFault::kNone);
}

TEST_F(FleetTest, DrainingAndLostPeersTakeNoWorkUntilTheNextHeartbeatSaysOtherwise) {
  RegisterWithSession();
  fleet_.OnDraining(id_);
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, 0));
  fleet_.OnHeartbeat(id_, {}, false, 0);
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 0));
  fleet_.OnPeerLost(id_);
  EXPECT_FALSE(fleet_.Healthy(worker(), 0));
  fleet_.OnHeartbeat(id_, {}, false, 0);
  EXPECT_TRUE(fleet_.Healthy(worker(), 0));
}

TEST_F(FleetTest, ANewIncarnationReplacesTheOldLife) {
  RegisterWithSession();
  fleet_.AddLive(id_, {.sequences = 3, .prompt_tokens = 100});
  const auto replaced = *fleet_.OnRegistration("addr:1", Registration("a", 2), 50);
  ASSERT_EQ(replaced.size(), 1u);
  EXPECT_EQ(replaced[0].worker, id_);
  EXPECT_EQ(replaced[0].session, 7u);
  EXPECT_EQ(worker().session, 0u);
  EXPECT_EQ(worker().live.sequences, 0);
  EXPECT_EQ(fleet_.Find(id_), nullptr);
  EXPECT_EQ(fleet_.FindSession(7), nullptr);
  // What is late from the old life changes nothing.
  EXPECT_FALSE(fleet_.OnHeartbeat(id_, {}, true, 60));
  EXPECT_FALSE(fleet_.OnWatchLost(id_));
  fleet_.AddLive(id_, {.sequences = -3, .prompt_tokens = -100});
  EXPECT_EQ(worker().live.sequences, 0);
  EXPECT_FALSE(worker().draining);
}

// What comes late, or of a name that somebody made up, must not end the router either.
TEST_F(FleetTest, WhatIsSaidOfALifeThatIsNotKnownChangesNothing) {
  RegisterWithSession();
  for (const WorkerId& unknown :
       {WorkerId{.name = "a", .incarnation = 9}, WorkerId{.name = "b", .incarnation = 1}}) {
    EXPECT_FALSE(fleet_.OnSessionUp(unknown, 8));
    EXPECT_FALSE(fleet_.OnSnapshot(unknown));
    fleet_.OnFull(unknown, 0, 0);
    fleet_.OnPromptRefused(unknown, 0, 0);
    fleet_.OnRunAloneRefused(unknown, 0);
    fleet_.OnDraining(unknown);
    fleet_.OnPeerLost(unknown);
    fleet_.Reserve(unknown, true);
    fleet_.OnStepFailed(unknown, 0);
    fleet_.OnStepWorked(unknown);
  }
  EXPECT_EQ(fleet_.workers().size(), 1u);
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), /*runs_alone=*/true, 0));
  EXPECT_TRUE(fleet_.HasPromptRoom(worker(), 0));
}

// Whoever makes up incarnations must not end the router: what ran there ends at its own time.
TEST_F(FleetTest, ALifeThatComesAgainStillHasWhatRunsThere) {
  RegisterWithSession();
  fleet_.AddLive(id_, {.sequences = 2, .prompts = 1, .prompt_tokens = 100});
  EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 2), 1).ok());
  EXPECT_EQ(worker().live.sequences, 0);
  EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 1), 2).ok());
  EXPECT_EQ(worker().live.sequences, 2);
  EXPECT_EQ(worker().live.prompt_tokens, 100);
  EXPECT_EQ(worker().live.prompts, 1);
  fleet_.AddLive(id_, {.sequences = -2, .prompts = -1, .prompt_tokens = -100});
  EXPECT_EQ(worker().live.sequences, 0);
  EXPECT_EQ(worker().live.prompt_tokens, 0);
}

TEST_F(FleetTest, RegisteringAgainKeepsTheSession) {
  RegisterWithSession();
  EXPECT_TRUE(fleet_.OnWatchLost(id_));
  EXPECT_FALSE(fleet_.Healthy(worker(), 0));
  EXPECT_TRUE(fleet_.OnRegistration("addr:2", Registration("a", 1), 10)->empty());
  EXPECT_EQ(worker().address, "addr:2");
  EXPECT_EQ(worker().session, 7u);
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 10));
  EXPECT_FALSE(fleet_.OnSessionUp(id_, 8)) << "one session a worker";
}

TEST_F(FleetTest, AFullWorkerGetsMoreOnlyAsItEndsSomeOrTimePasses) {
  RegisterWithSession();
  fleet_.AddLive(id_, {.attempts = 8});
  fleet_.OnFull(id_, 0, 0);
  EXPECT_TRUE(fleet_.Healthy(worker(), 0)) << "full is not lost";
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, 0));
  fleet_.AddLive(id_, {.attempts = -1});
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 0));
  fleet_.OnHeartbeat(id_, {}, false, kTimes.heartbeat_us);
  fleet_.AddLive(id_, {.attempts = 1});
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, 0)) << "it did not use what it had";
  fleet_.OnHeartbeat(id_, {}, false, kTimes.heartbeat_us);
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, kTimes.heartbeat_us));
  fleet_.AddLive(id_, {.attempts = 1});
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, kTimes.heartbeat_us));
}

TEST_F(FleetTest, SoDoesAPrefillWorkerWithPrompts) {
  RegisterWithSession();
  fleet_.AddLive(id_, {.prompts = 2});
  fleet_.OnPromptRefused(id_, 0, 0);
  EXPECT_FALSE(fleet_.HasPromptRoom(worker(), 0));
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 0)) << "its own sequences are another matter";
  fleet_.OnHeartbeat(id_, {}, false, kTimes.heartbeat_us);
  EXPECT_TRUE(fleet_.HasPromptRoom(worker(), kTimes.heartbeat_us));
}

TEST_F(FleetTest, AWatchThatComesAgainFindsAFullWorkerFull) {
  RegisterWithSession();
  fleet_.AddLive(id_, {.attempts = 2, .prompts = 2});
  fleet_.OnFull(id_, 0, 0);
  fleet_.OnPromptRefused(id_, 0, 0);
  EXPECT_TRUE(fleet_.OnWatchLost(id_));
  EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 1), 0).ok());
  EXPECT_TRUE(fleet_.Healthy(worker(), 0));
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, 0));
  EXPECT_FALSE(fleet_.HasPromptRoom(worker(), 0));
}

TEST_F(FleetTest, AWorkerBeginsWithABatchAndAsManyThatWait) {
  WorkerRegistration registration = Registration("a", 1);
  registration.max_sequences = 4;
  EXPECT_TRUE(fleet_.OnRegistration("addr:1", registration, 0).ok());
  EXPECT_TRUE(fleet_.OnSessionUp(id_, 7));
  fleet_.AddLive(id_, {.attempts = 7, .sequences = 7 * 128});
  EXPECT_TRUE(fleet_.MayTakeWork(worker(), false, 0)) << "attempts take turns, not their choices";
  fleet_.AddLive(id_, {.attempts = 1, .sequences = 1});
  EXPECT_FALSE(fleet_.MayTakeWork(worker(), false, 0));
}

// The scale of --liveness-scale that slow checks use, and more.
TEST(FleetTimesTest, PausesHoldAtAnyScale) {
  const LivenessTimes times = LivenessTimes::Scaled(1000);
  Fleet fleet(times);
  EXPECT_TRUE(fleet.OnRegistration("addr:1", Registration("a", 1), 0).ok());
  const WorkerId id{.name = "a", .incarnation = 1};
  fleet.OnStepFailed(id, 0);
  EXPECT_FALSE(fleet.Healthy(*fleet.Find(id), times.heartbeat_us - 1));
  EXPECT_TRUE(fleet.Healthy(*fleet.Find(id), times.heartbeat_us));
}

TEST(FleetTimesTest, NoneIsLeftUnscaled) {
  constexpr size_t kNumTimes = sizeof(LivenessTimes) / sizeof(int64_t);
  using All = std::array<int64_t, kNumTimes>;
  const All scaled = std::bit_cast<All>(LivenessTimes::Scaled(3));
  const All as_they_are = std::bit_cast<All>(LivenessTimes());
  for (size_t i = 0; i < kNumTimes; ++i) EXPECT_EQ(scaled[i], 3 * as_they_are[i]) << i;
}

class WorkWindowTest : public testing::Test {
 protected:
  void Heartbeat(int in_use) {
    now_us_ += kTimes.heartbeat_us;
    window_.OnHeartbeat(in_use, kTimes.heartbeat_us, now_us_);
  }
  void Refused(int in_use, int64_t retry_after_us = 0) {
    window_.OnRefused(in_use, retry_after_us, kTimes.heartbeat_us, now_us_);
  }
  bool HasRoom(int in_use) const { return window_.HasRoom(in_use, now_us_); }

  WorkWindow window_{8};
  int64_t now_us_ = 0;
};

TEST_F(WorkWindowTest, IsAskedForMoreEverMoreRarelyWhileTheAnswerIsNo) {
  int refusals = 0, in_use = 5;
  while (now_us_ < 60'000'000) {
    Heartbeat(in_use);
    if (!HasRoom(in_use)) continue;
    ++refusals;
    Refused(in_use);
  }
  EXPECT_LT(refusals, 25);
  // There is room for two more: both are found, a heartbeat apart.
  while (!HasRoom(in_use)) Heartbeat(in_use);
  EXPECT_LT(now_us_, 67'000'000);
  Heartbeat(++in_use);
  EXPECT_TRUE(HasRoom(in_use));
  EXPECT_FALSE(HasRoom(in_use + 1));
}

TEST_F(WorkWindowTest, AnAnswerThatTakesLongIsStillNo) {
  int refusals = 0;
  while (now_us_ < 60'000'000) {
    Heartbeat(5);
    if (!HasRoom(5)) continue;
    for (int i = 0; i < 3; ++i) Heartbeat(6);  // What may be too much is on its way.
    ++refusals;
    Refused(5);
  }
  EXPECT_LT(refusals, 25);
}

TEST_F(WorkWindowTest, WhatWasTakenMakesItHopefulAgain) {
  for (int i = 0; i < 6; ++i) {
    while (!HasRoom(5)) Heartbeat(5);
    Refused(5);
  }
  int in_use = 5;
  while (in_use < 20) {
    Heartbeat(in_use);
    if (HasRoom(in_use)) ++in_use;
  }
  Refused(in_use);
  const int64_t refused_us = now_us_;
  while (!HasRoom(in_use)) Heartbeat(in_use);
  EXPECT_EQ(now_us_ - refused_us, kTimes.heartbeat_us);
}

TEST_F(WorkWindowTest, WaitsForTheTimeThatTheWorkerNames) {
  Refused(0, 700'000);
  EXPECT_FALSE(window_.HasRoom(0, 699'999)) << "others have filled it";
  EXPECT_TRUE(window_.HasRoom(0, 700'000));
  Refused(0, 60'000'000);
  EXPECT_FALSE(window_.HasRoom(0, 999'999));
  EXPECT_TRUE(window_.HasRoom(0, 1'000'000)) << "who has nothing there asks again within a second";
  now_us_ = 1'000'000;
  Refused(3, 900'000);
  window_.OnHeartbeat(3, kTimes.heartbeat_us, 1'899'999);
  EXPECT_FALSE(window_.HasRoom(3, 1'899'999));
  window_.OnHeartbeat(3, kTimes.heartbeat_us, 1'900'000);
  EXPECT_TRUE(window_.HasRoom(3, 1'900'000));
}

TEST_F(WorkWindowTest, IsHeldSixSecondsAtMostWhateverTheWorkerNames) {
  Refused(3, 60'000'000);
  while (now_us_ < 32 * kTimes.heartbeat_us - 1) {
    EXPECT_FALSE(HasRoom(3)) << now_us_;
    Heartbeat(3);
  }
  EXPECT_TRUE(HasRoom(3));
}

TEST_F(WorkWindowTest, WhoTookOneWhereNobodyWasIsAskedForASecondWithTheNextHeartbeat) {
  Refused(0);
  now_us_ += kTimes.heartbeat_us;
  ASSERT_TRUE(HasRoom(0));
  EXPECT_FALSE(HasRoom(1));
  Heartbeat(1);
  EXPECT_TRUE(HasRoom(1));
}

TEST_F(FleetTest, EstimatesCorrectTheLastReportByWhatWasDoneSince) {
  RegisterWithSession();
  fleet_.AddLive(id_, {.sequences = 2, .prompt_tokens = 50});
  WorkerLoad load;
  load.running_sequences = 5;  // Three are other routers'.
  load.waiting_sequences = 1;
  load.waiting_prompt_tokens = 80;
  fleet_.OnHeartbeat(id_, load, false, 0);
  EXPECT_EQ(worker().estimated_sequences(), 6);
  fleet_.AddLive(id_, {.sequences = 2, .prompt_tokens = 30});
  EXPECT_EQ(worker().estimated_sequences(), 8);
  EXPECT_EQ(worker().estimated_prompt_tokens(), 110);
  fleet_.AddLive(id_, {.sequences = -4, .prompt_tokens = -80});
  EXPECT_EQ(worker().estimated_sequences(), 4);
  // What it has not seen yet is there all the same.
  fleet_.AddLive(id_, {.sequences = 3, .prompt_tokens = 40});
  fleet_.OnHeartbeat(id_, {}, false, 0);
  EXPECT_EQ(worker().estimated_sequences(), 3);
  EXPECT_EQ(worker().estimated_prompt_tokens(), 40);
}

TEST_F(FleetTest, IsKnownCompletelyAfterASnapshotFromEveryExpectedAddress) {
  fleet_.Expect({"addr:1", "addr:2"});
  EXPECT_FALSE(fleet_.KnownCompletely());
  RegisterWithSession();
  EXPECT_TRUE(fleet_.OnRegistration("addr:2", Registration("b", 1), 0).ok());
  EXPECT_FALSE(fleet_.KnownCompletely());
  fleet_.OnSnapshot(id_);
  EXPECT_EQ(fleet_.awaited(), (std::set<std::string>{"addr:2"}));
  fleet_.OnSnapshot({.name = "b", .incarnation = 9});
  EXPECT_FALSE(fleet_.KnownCompletely()) << "another incarnation's";
  fleet_.OnSnapshot({.name = "b", .incarnation = 1});
  EXPECT_TRUE(fleet_.KnownCompletely());
}

TEST_F(FleetTest, ForgetsWhoHasBeenGoneForLong) {
  RegisterWithSession();
  fleet_.OnWatchLost(id_);
  EXPECT_TRUE(fleet_.ForgetGone(2 * Fleet::kForgetAfterUs).empty()) << "its session stands";
  fleet_.OnSessionLost(7);
  EXPECT_TRUE(fleet_.ForgetGone(Fleet::kForgetAfterUs).empty());
  EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 1), 0).ok());
  EXPECT_TRUE(fleet_.ForgetGone(2 * Fleet::kForgetAfterUs).empty()) << "its Watch stands";
  fleet_.OnWatchLost(id_);
  EXPECT_EQ(fleet_.ForgetGone(Fleet::kForgetAfterUs + 1), std::vector<WorkerId>{id_});
  EXPECT_TRUE(fleet_.workers().empty());
}

TEST_F(FleetTest, WhoIsForgottenIsMissedForAsLongAsItIsExpected) {
  using Missing = std::map<std::string, Fleet::Missing>;
  fleet_.Expect({"addr:1"});
  const auto lose = [&](int64_t now_us) {
    EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 1), now_us).ok());
    fleet_.OnSnapshot(id_);
    fleet_.OnWatchLost(id_);
    EXPECT_TRUE(fleet_.missing().empty());
    EXPECT_EQ(fleet_.ForgetGone(now_us + Fleet::kForgetAfterUs + 1).size(), 1u);
    EXPECT_TRUE(fleet_.workers().empty());
  };
  const Missing missing = {{"addr:1", {.name = "a", .role = Registration("a", 1).role}}};
  lose(0);
  EXPECT_EQ(fleet_.missing(), missing);
  EXPECT_TRUE(fleet_.KnownCompletely()) << "it had been there";
  EXPECT_TRUE(fleet_.ForgetGone(100 * Fleet::kForgetAfterUs).empty());
  EXPECT_EQ(fleet_.missing(), missing);

  lose(100 * Fleet::kForgetAfterUs);
  EXPECT_EQ(fleet_.missing(), missing);
  fleet_.SetExpected({"addr:1", "addr:2"});
  EXPECT_EQ(fleet_.missing(), missing);
  fleet_.SetExpected({"addr:2"});
  EXPECT_TRUE(fleet_.missing().empty());
  lose(200 * Fleet::kForgetAfterUs);
  EXPECT_TRUE(fleet_.missing().empty()) << "nobody expects it any more";
}

TEST_F(FleetTest, OfWhoIsMissedItStaysKnownThatItWasAskedToLeave) {
  fleet_.Expect({"addr:1"});
  for (const bool draining : {true, false}) {
    EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 1), 0).ok());
    fleet_.OnHeartbeat(id_, {}, draining, 0);
    fleet_.OnWatchLost(id_);
    fleet_.ForgetGone(Fleet::kForgetAfterUs + 1);
    ASSERT_EQ(fleet_.missing().count("addr:1"), 1u);
    EXPECT_EQ(fleet_.missing().at("addr:1").was_draining, draining);
  }
}

TEST_F(FleetTest, AddressesWhereNobodyHasEverBeenAreCounted) {
  EXPECT_EQ(fleet_.NumUnseen(), 0);
  fleet_.Expect({"addr:1", "addr:2", "addr:3"});
  EXPECT_EQ(fleet_.NumUnseen(), 3);
  EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 1), 0).ok());
  EXPECT_TRUE(fleet_.OnRegistration("else:1", Registration("b", 1), 0).ok());
  EXPECT_EQ(fleet_.NumUnseen(), 2);
  EXPECT_FALSE(fleet_.OnRegistration("addr:2", Registration("a", 1), 0).ok());
  EXPECT_EQ(fleet_.NumUnseen(), 1) << "the same one by another address";
  EXPECT_FALSE(fleet_.OnRegistration("addr:3", Registration("a", 2), 0).ok());
  EXPECT_EQ(fleet_.NumUnseen(), 1) << "another one of the same name is not served";
  fleet_.OnWatchLost(id_);
  fleet_.ForgetGone(Fleet::kForgetAfterUs + 1);
  EXPECT_EQ(fleet_.NumUnseen(), 1) << "who was there is missing, not unseen";
  fleet_.SetExpected({"addr:1", "addr:4", "addr:5"});
  EXPECT_EQ(fleet_.NumUnseen(), 2);
  fleet_.SetExpected({});
  fleet_.SetExpected({"addr:1"});
  EXPECT_EQ(fleet_.NumUnseen(), 1) << "another one has its address now";
  fleet_.SetExpected({"else:1"});
  EXPECT_EQ(fleet_.NumUnseen(), 0) << "it was there before the name said so";
}

TEST_F(FleetTest, WhoComesAtAnotherAddressIsNotMissedAtItsOld) {
  fleet_.Expect({"addr:1", "addr:2"});
  EXPECT_TRUE(fleet_.OnRegistration("addr:1", Registration("a", 1), 0).ok());
  fleet_.OnWatchLost(id_);
  const int64_t later_us = Fleet::kForgetAfterUs + 1;
  EXPECT_EQ(fleet_.ForgetGone(later_us).size(), 1u);
  EXPECT_TRUE(fleet_.OnRegistration("addr:2", Registration("a", 1), later_us).ok());
  EXPECT_EQ(fleet_.missing().size(), 1u) << "perhaps another one belongs there";
  EXPECT_FALSE(fleet_.OnRegistration("addr:1", Registration("a", 1), later_us).ok());
  EXPECT_TRUE(fleet_.missing().empty()) << "it is the same one";
}

// Else whoever registers under ever new names would fill the router.
TEST_F(FleetTest, AnAddressHasOneWorkerWhateverNamesItGivesItself) {
  RegisterWithSession();
  EXPECT_TRUE(fleet_.OnRegistration("addr:2", Registration("other", 1), 0).ok());
  const auto replaced = *fleet_.OnRegistration("addr:1", Registration("b", 1), 1);
  ASSERT_EQ(replaced.size(), 1u);
  EXPECT_EQ(replaced[0].worker, id_);
  EXPECT_EQ(replaced[0].session, 7u);
  EXPECT_EQ(fleet_.FindSession(7), nullptr);
  EXPECT_FALSE(fleet_.OnHeartbeat(id_, {}, false, 2));
  for (int i = 0; i < 1000; ++i) {
    const auto ended = fleet_.OnRegistration("addr:1", Registration(std::to_string(i), 1), 2);
    ASSERT_TRUE(ended.ok());
    EXPECT_EQ(ended->size(), 1u);
  }
  EXPECT_EQ(fleet_.workers().size(), 2u);
  EXPECT_EQ(fleet_.workers().count("other"), 1u);
}

TEST_F(FleetTest, PairsOnlyWorkersWhoseBlocksMeanTheSame) {
  FleetWorker decode, prefill;
  decode.registration = Registration("a", 1);
  prefill.registration = Registration("b", 1, WorkerRole::kPrefill);
  EXPECT_TRUE(fleet_.MayPair(decode, prefill, 0));
  prefill.registration.terms.numerics_id = "other";
  EXPECT_FALSE(fleet_.MayPair(decode, prefill, 0));
  prefill.registration.terms.numerics_id = "n";
  prefill.registration.terms.kv_class = "other";
  EXPECT_FALSE(fleet_.MayPair(decode, prefill, 0));
  prefill.registration.terms.kv_class = "kv";
  prefill.registration.terms.protocol_min = kProtocolMax + 1;
  prefill.registration.terms.protocol_max = kProtocolMax + 1;
  EXPECT_FALSE(fleet_.MayPair(decode, prefill, 0));
  prefill.registration = Registration("b", 1, WorkerRole::kPrefill);
  prefill.registration.terms.transport = "other";
  EXPECT_FALSE(fleet_.MayPair(decode, prefill, 0));
  prefill.registration.terms.transport = decode.registration.terms.transport;
  prefill.registration.model = "other";
  EXPECT_FALSE(fleet_.MayPair(decode, prefill, 0));
}

}  // namespace
}  // namespace tandem
