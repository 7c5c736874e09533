#include "services/router/router_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/fleet/fleet.h"
#include "services/router/worker_pool.h"
#include "tests/support/core_worker.h"
#include "tests/support/count_of.h"
#include "tests/support/eventually.h"
#include "tests/support/metric_value.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SetClock final : public Clock {
 public:
  int64_t NowUs() const override { return now_us_; }
  void Add(int64_t us) { now_us_ += us; }

 private:
  std::atomic<int64_t> now_us_{1'000'000};
};

// Read while the router's thread rests.
class ErrorSink final : public RequestSink {
 public:
  explicit ErrorSink(std::vector<std::string>* errors) : errors_(errors) {}
  void OnPrompt(const PromptReport&) override {}
  void OnDelta(const Delta&) override {}
  void OnDone(const RequestReport&) override {}
  void OnError(const absl::Status& status, const RequestReport&) override {
    errors_->emplace_back(status.message());
  }

 private:
  std::vector<std::string>* const errors_;
};

class RouterCoreTest : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& expected, int32_t max_waiting = 4096,
             size_t max_queued_commands = 4096) {
    RouterCoreOptions options;
    options.max_queued_commands = max_queued_commands;
    options.max_model_tokens = kModelTokens;
    options.owner.max_waiting_requests = max_waiting;
    options.owner.router_incarnation = 1;
    options.expected_workers = expected;
    core_ = *RouterCore::Create(options, &clock_, &metrics_);
  }

  static WorkerRegistration Of(const std::string& name, WorkerRole role) {
    WorkerRegistration registration;
    registration.worker = {.name = name, .incarnation = 1};
    registration.role = role;
    registration.kv.block_tokens = 16;
    registration.kv.num_blocks = 100;
    registration.max_model_tokens = 1000;
    registration.max_sequences = 8;
    return registration;
  }
  void Register(const std::string& address) { Register(address, Of("d", WorkerRole::kDecode)); }
  void Register(const std::string& address, const WorkerRegistration& registration) {
    core_->OnWatchUpdate(address, registration.worker, registration, watch_);
  }
  // The worker "d", with a session.
  std::shared_ptr<RecordingSession> Connect() {
    auto session = std::make_shared<RecordingSession>();
    Register("a:1");
    core_->OnSessionUp(worker_, kSession, session);
    Publish();
    return session;
  }
  // What the worker "d" says of the first attempt that it was given.
  void Say(const RecordingSession& session, RouterEvent event) {
    std::visit([&](auto& e) { e.attempt = session.submits.at(0).attempt; }, event);
    core_->OnStepBatch(kSession, {.worker_incarnation = 1, .events = {std::move(event)}});
    Publish();
  }

  // By less at a time than what the router takes for a pause of its own.
  void Advance(int64_t us) {
    for (constexpr int64_t kStepUs = 500'000; us > 0; us -= kStepUs) {
      clock_.Add(kStepUs);
      Publish();
      Publish();  // It has looked at the clock in between.
    }
  }

  void Publish() { Flush(*core_); }

  // Decode workers by state, and all other roles' states together: nobody is in those.
  std::map<std::string, double> States() {
    Publish();
    std::map<std::string, double> states;
    for (const prometheus::MetricFamily& family : registry_.Collect()) {
      if (family.name != "tandem_workers") continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        std::map<std::string, std::string> labels;
        for (const auto& label : metric.label) labels[label.name] = label.value;
        if (labels["role"] == "decode") {
          states[labels["state"]] = metric.gauge.value;
        } else {
          EXPECT_EQ(metric.gauge.value, 0) << labels["role"] << " " << labels["state"];
        }
        ++num_series_;
      }
    }
    return states;
  }
  double Shown(const std::string& sample) {
    return MetricValue(MetricsToText(registry_.Collect()), sample);
  }
  double Lost() { return States()["lost"]; }
  double Unseen() {
    Publish();
    return metrics_.workers_unseen.Value();
  }

  // Starts a request that nobody computes.
  RouterCore::Handle Ask(const std::string& client) {
    const RouterCore::Handle handle = Post(client);
    Publish();
    return handle;
  }
  RouterCore::Handle Post(const std::string& client, int64_t time_left_us = 0) {
    RouterCore::NewRequest request;
    request.handle = core_->NewHandle();
    request.asked.client = client;
    request.asked.spec = SpecOfPrompt({1, 2, 3}, 1);
    request.asked.spec.sampling.max_tokens = 4;
    request.asked.spec.time_left_us = time_left_us;
    request.sink = std::make_shared<ErrorSink>(&errors_);
    last_sink_ = request.sink;
    const RouterCore::Handle handle = request.handle;
    core_->StartRequests("of " + client, {std::move(request)});
    return handle;
  }

  static constexpr int32_t kModelTokens = 500;
  static constexpr int64_t kLongUs = Fleet::kForgetAfterUs + 2'000'000;
  static constexpr SessionId kSession = 1;

  const WorkerId worker_{.name = "d", .incarnation = 1};
  SetClock clock_;
  MetricsRegistry registry_;
  RouterMetrics metrics_{&registry_};
  int num_series_ = 0;
  std::vector<std::string> errors_;
  std::weak_ptr<RequestSink> last_sink_;  // The last request has it.
  const std::shared_ptr<CountingWatch> watch_ = std::make_shared<CountingWatch>();
  std::unique_ptr<RouterCore> core_;
};

// An alert on what is missing would otherwise miss it.
TEST_F(RouterCoreTest, EveryStateOfWorkersIsToldBeforeTheFirstWorkerComes) {
  Start({"a:1"});
  EXPECT_EQ(States(), (std::map<std::string, double>{
                          {"draining", 0}, {"failing", 0}, {"healthy", 0}, {"lost", 0}}));
  EXPECT_EQ(num_series_, 3 * 4) << "of prefill, decode and hybrid workers";
}

TEST_F(RouterCoreTest, AWorkerOfTheListIsLostUntilItComesBack) {
  Start({"a:1"});
  Register("a:1");
  EXPECT_EQ(States()["healthy"], 1);
  core_->OnWatchLost("a:1", worker_);
  EXPECT_EQ(Lost(), 1);
  Advance(kLongUs);
  EXPECT_TRUE(core_->View().workers.empty());
  EXPECT_EQ(Lost(), 1);
  Register("a:1");
  EXPECT_EQ(Lost(), 0);
  EXPECT_EQ(States()["healthy"], 1);
}

TEST_F(RouterCoreTest, WorkersThatNeverCameAreCounted) {
  Start({"a:1", "a:2"});
  EXPECT_EQ(Unseen(), 2);
  Register("a:1");
  EXPECT_EQ(Unseen(), 1);
  core_->OnWatchLost("a:1", worker_);
  EXPECT_EQ(Unseen(), 1) << "it is lost";
  core_->OnExpected({"a:1"});
  EXPECT_EQ(Unseen(), 0);
}

TEST_F(RouterCoreTest, WhoIsRefusedForWantOfRoomIsToldTheLimitAndTheLogItsFlag) {
  Start({}, /*max_waiting=*/2);
  testing::internal::CaptureStderr();
  Ask("a");
  Ask("b");
  Ask("b");
  EXPECT_EQ(errors_, std::vector<std::string>{"2 requests wait for a worker, at most 2 may"});
  Ask("b");
  clock_.Add(1'000'000);
  Ask("a");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(errors_.size(), 3u);
  EXPECT_THAT(log, HasSubstr("--max-queued-requests"));
  EXPECT_THAT(log, HasSubstr("\"max_queued_requests\":2"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << "one a second: " << log;
}

TEST_F(RouterCoreTest, ARequestThatWasNeverSentHasWaitedSinceItArrived) {
  Start({});
  SetLogLevel(LogLevel::kDebug);
  testing::internal::CaptureStderr();
  const RouterCore::Handle handle = Ask("a");
  Advance(3'000'000);
  core_->CancelRequests({handle});
  Publish();
  SetLogLevel(LogLevel::kInfo);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("\"waited_ms\":3000,\"took_ms\":3000"));
}

TEST_F(RouterCoreTest, WhatARequestWaitsForTheRouterIsOfItsOwnTime) {
  Start({});
  std::promise<void> go_on;
  core_->PublishThen([&go_on] { go_on.get_future().wait(); });
  Post("late", 400'000);
  Post("too late", 200'000);
  clock_.Add(300'000);
  go_on.set_value();
  Publish();
  EXPECT_THAT(errors_, ElementsAre()) << "not that its time is wrong";
  clock_.Add(99'999);
  Publish();
  Publish();  // It has looked at the clock in between.
  EXPECT_THAT(errors_, ElementsAre(HasSubstr("0 tokens generated")));
  clock_.Add(1);
  Publish();
  Publish();
  EXPECT_THAT(errors_,
              ElementsAre(HasSubstr("0 tokens generated"), HasSubstr("0 tokens generated")));
}

TEST_F(RouterCoreTest, AWorkerThatNobodyExpectsIsForgotten) {
  Start({});
  Register("a:1");
  core_->OnWatchLost("a:1", worker_);
  Advance(kLongUs);
  EXPECT_EQ(Lost(), 0);
}

// A worker that may be asked nothing yet makes its router no readier.
TEST_F(RouterCoreTest, AWorkerDecodesOnceItsSessionIsOpen) {
  Start({});
  Register("a:1");
  Publish();
  ASSERT_EQ(core_->View().workers.size(), 1u);
  EXPECT_TRUE(core_->View().workers[0].healthy);
  EXPECT_EQ(core_->View().workers[0].address, "a:1");
  EXPECT_EQ(core_->View().workers[0].registration.max_model_tokens, kModelTokens) << "of more";
  EXPECT_FALSE(core_->View().can_decode);
  core_->OnSessionUp(worker_, 1, std::make_shared<RecordingSession>());
  Publish();
  EXPECT_TRUE(core_->View().can_decode);
  core_->OnSessionLost(1);
  Publish();
  EXPECT_FALSE(core_->View().can_decode);
}

TEST_F(RouterCoreTest, APrefillWorkerAloneDecodesNothingAndNamesNoNumerics) {
  Start({});
  WorkerRegistration prefill = Of("a", WorkerRole::kPrefill), decode = Of("b", WorkerRole::kDecode),
                     other = Of("c", WorkerRole::kDecode);
  prefill.terms.numerics_id = "of a prompt";
  decode.terms.numerics_id = "of an answer";
  other.terms.numerics_id = "of another answer";
  Register("a:1", prefill);
  core_->OnSessionUp(prefill.worker, 1, std::make_shared<RecordingSession>());
  Publish();
  EXPECT_TRUE(core_->View().workers.at(0).connected);
  EXPECT_FALSE(core_->View().can_decode);
  EXPECT_EQ(core_->View().num_decoding, 0u);
  EXPECT_EQ(core_->View().numerics_id, "");
  Register("b:1", decode);
  Register("c:1", other);
  Publish();
  EXPECT_EQ(core_->View().numerics_id, "of an answer") << "the first of them";
  core_->OnWatchLost("c:1", other.worker);
  Publish();
  EXPECT_EQ(core_->View().num_decoding, 2u) << "one of them is lost";
}

// What only a worker that is still to come can hold would else be refused for good.
TEST_F(RouterCoreTest, TheContextIsKnownOnceEveryWorkerOfTheListIs) {
  Start({"a:1", "b:1"});
  EXPECT_THAT(core_->View().awaited, ElementsAre("a:1", "b:1")) << "from the first look on";
  const auto come = [this](const std::string& name, WorkerRole role, int32_t max_model_tokens) {
    WorkerRegistration registration = Of(name, role);
    registration.max_model_tokens = max_model_tokens;
    Register(name + ":1", registration);
    core_->OnWatchUpdate(name + ":1", registration.worker,
                         KvEvents{.first_sequence = 0, .snapshot = true}, watch_);
    Publish();
    return core_->max_model_tokens();
  };
  EXPECT_EQ(come("a", WorkerRole::kDecode, 32), 0);
  EXPECT_FALSE(core_->View().known_completely);
  EXPECT_THAT(core_->View().awaited, ElementsAre("b:1"));
  EXPECT_EQ(come("b", WorkerRole::kPrefill, 64), 64);
  EXPECT_TRUE(core_->View().known_completely);
  EXPECT_THAT(core_->View().awaited, ElementsAre());
}

TEST_F(RouterCoreTest, AWorkerThatLeavesOrWhoseStepFailedIsNotLost) {
  Start({});
  const auto session = Connect();
  Ask("a");
  Say(*session, EndedEvent{.status = absl::AbortedError("a step failed")});
  EXPECT_EQ(States()["failing"], 1);
  core_->OnWatchUpdate("a:1", worker_, Heartbeat{.draining = true}, watch_);
  EXPECT_EQ(States()["draining"], 1);
  EXPECT_EQ(Lost(), 0);
  EXPECT_TRUE(core_->View().workers.at(0).draining);
  EXPECT_TRUE(core_->View().workers.at(0).connected);
  EXPECT_FALSE(core_->View().can_decode) << "nothing new";
}

TEST_F(RouterCoreTest, AWorkerWhoseStepFailedIsLostOnceItStandsStillOrHasGone) {
  Start({});
  const auto session = Connect();
  Ask("a");
  Say(*session, EndedEvent{.status = absl::AbortedError("a step failed")});
  WorkerLoad stuck;
  stuck.has_work = true;
  stuck.since_progress_us = LivenessTimes().move_streams_after_us;
  core_->OnWatchUpdate("a:1", worker_, Heartbeat{.load = stuck}, watch_);
  EXPECT_EQ(Lost(), 1);
  core_->OnWatchUpdate("a:1", worker_, Heartbeat(), watch_);
  EXPECT_EQ(States()["failing"], 1);
  core_->OnWatchLost("a:1", worker_);
  EXPECT_EQ(Lost(), 1);
}

TEST_F(RouterCoreTest, APrefillWorkerIsToldOnceNobodyIsLeftWhoCanTakeItsBlocks) {
  Start({});
  WorkerRegistration other = Of("other", WorkerRole::kDecode);
  other.terms.transport = "another";
  const auto told_with = [this](const std::function<void()>& change) {
    testing::internal::CaptureStderr();
    change();
    Publish();
    return CountOf("computes for nobody", testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(told_with([&] {
              Register("other:1", other);
              Register("p:1", Of("p", WorkerRole::kPrefill));
            }),
            1);
  EXPECT_EQ(told_with([&] { Register("a:1"); }), 0);
  EXPECT_EQ(told_with([&] { core_->OnWatchLost("a:1", worker_); }), 1);
}

TEST_F(RouterCoreTest, AllWhoAreLostAreCountedAndTheFirstOfThemNamed) {
  constexpr size_t kWorkers = kMaxShownLost + 4;
  Start({});
  for (size_t i = 0; i < kWorkers; ++i) {
    const WorkerRegistration registration = Of("d" + std::to_string(i), WorkerRole::kDecode);
    const std::string address = "a:" + std::to_string(i);
    Register(address, registration);
    core_->OnWatchLost(address, registration.worker);
  }
  Publish();
  const FleetView view = core_->View();
  EXPECT_EQ(view.num_lost, kWorkers);
  EXPECT_EQ(view.lost.size(), kMaxShownLost);
}

TEST_F(RouterCoreTest, ARouterThatLeavesTellsOfNobodyWhoIsLost) {
  Start({});
  testing::internal::CaptureStderr();
  for (const bool leaves : {false, true}) {
    if (leaves) core_->BeginLeave();
    Register("a:1");
    Publish();
    core_->OnWatchLost("a:1", worker_);
    Publish();
  }
  EXPECT_EQ(CountOf("a worker is lost", testing::internal::GetCapturedStderr()), 1);
}

TEST_F(RouterCoreTest, AWorkerOfAnotherProtocolIsRefusedAndToldOnceUntilItIsOfUse) {
  Start({});
  WorkerRegistration other = Of("d", WorkerRole::kDecode);
  other.terms.protocol_min = other.terms.protocol_max = 99;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 4; ++i) Register("a:1", other);
  Publish();
  EXPECT_EQ(watch_->num_refused, 4);
  EXPECT_TRUE(core_->View().workers.empty());
  Register("a:1");
  Register("a:1", other);
  Publish();
  EXPECT_EQ(CountOf("a worker is refused", testing::internal::GetCapturedStderr()), 2);
  EXPECT_EQ(watch_->num_refused, 5);
}

TEST_F(RouterCoreTest, AWorkerOfAnotherModelDecodesNothingHere) {
  Start({});
  WorkerRegistration other = Of("d", WorkerRole::kDecode);
  other.model = "another";
  other.terms.numerics_id = "n";
  testing::internal::CaptureStderr();
  Register("a:1", other);
  core_->OnSessionUp(worker_, kSession, std::make_shared<RecordingSession>());
  Register("b:1", Of("e", WorkerRole::kDecode));
  Publish();
  EXPECT_EQ(CountOf("serves another model", testing::internal::GetCapturedStderr()), 1);
  EXPECT_TRUE(core_->View().workers.at(0).connected);
  EXPECT_FALSE(core_->View().can_decode);
  EXPECT_EQ(core_->View().num_decoding, 1u) << "which has no session";
  EXPECT_EQ(core_->View().numerics_id, "");
}

// A Watch of it is refused at a second address.
TEST_F(RouterCoreTest, AWatchThatEndsElsewhereIsNotAWorkersLoss) {
  Start({});
  Register("a:1");
  core_->OnWatchLost("other:1", worker_);
  core_->OnWatchLost("a:1", {.name = "nobody", .incarnation = 1});
  EXPECT_EQ(States()["healthy"], 1);
}

TEST_F(RouterCoreTest, AWorkerThatIsSilentIsLostThoughNoStepFailed) {
  Start({});
  Register("a:1");
  EXPECT_EQ(Lost(), 0);
  Advance(LivenessTimes().no_new_work_after_us);
  EXPECT_EQ(Lost(), 1);
}

TEST_F(RouterCoreTest, AWorkerIsToldWhatIsCancelled) {
  Start({});
  const auto session = Connect();
  const RouterCore::Handle handle = Ask("a");
  core_->CancelRequests({handle});
  Publish();
  ASSERT_EQ(session->cancels.size(), 1u);
  EXPECT_EQ(session->cancels[0].attempt, session->submits.at(0).attempt);
}

TEST_F(RouterCoreTest, ASessionThatSaysWhatItMustNotIsClosed) {
  Start({});
  const auto session = Connect();
  Ask("a");
  EXPECT_FALSE(session->closed);
  Say(*session, TokenEvent{.position = 1000});
  EXPECT_TRUE(session->closed);
  EXPECT_EQ(session.use_count(), 1) << "it is let go";
  EXPECT_EQ(session->num_reads, 1) << "and not read on";
  EXPECT_FALSE(core_->View().workers.at(0).connected);
  EXPECT_EQ(core_->View().requests_in_flight, 1) << "it goes on elsewhere";
}

TEST_F(RouterCoreTest, ASessionThatNobodyWantsIsClosedAndNotRead) {
  Start({});
  const auto session = std::make_shared<RecordingSession>();
  core_->OnSessionUp(worker_, kSession, session);  // Its worker has not registered.
  Publish();
  EXPECT_TRUE(session->closed);
  EXPECT_EQ(session->num_reads, 0);
  EXPECT_EQ(session.use_count(), 1);
}

TEST_F(RouterCoreTest, ASessionIsReadBatchByBatchUntilItIsLost) {
  Start({});
  const auto session = Connect();
  EXPECT_EQ(session->num_reads, 1);
  core_->OnStepBatch(kSession, {.worker_incarnation = 1});
  Publish();
  EXPECT_EQ(session->num_reads, 2);
  core_->OnSessionLost(kSession);
  Publish();
  EXPECT_EQ(session.use_count(), 1);
}

TEST_F(RouterCoreTest, AMessageIsChargedUntilItHasBeenDealtWith) {
  constexpr int64_t kBatchBytes = 1000, kEventBytes = 3000;
  MemoryBudget budget(int64_t{1} << 20);
  Start({});
  Connect();
  std::promise<void> go_on;
  core_->PublishThen([&go_on] { go_on.get_future().wait(); });
  core_->OnWatchUpdate("a:1", worker_, Heartbeat(), watch_, *budget.Hold("w", kEventBytes));
  EXPECT_EQ(budget.held_bytes(), kEventBytes);
  core_->OnStepBatch(kSession, {.worker_incarnation = 1}, *budget.Hold("w", kBatchBytes));
  EXPECT_EQ(budget.held_bytes(), kEventBytes + kBatchBytes);
  go_on.set_value();
  EXPECT_TRUE(Eventually([&] { return budget.held_bytes() == 0; }));
  core_.reset();
}

TEST_F(RouterCoreTest, NothingOfARequestIsKeptOnceItIsDone) {
  Start({});
  const auto session = Connect();
  Ask("a");
  EXPECT_FALSE(last_sink_.expired());
  SetLogLevel(LogLevel::kDebug);
  testing::internal::CaptureStderr();
  Say(*session, TokenEvent{.position = 3, .token = {.token = 7}, .finish = FinishReason::kLength});
  SetLogLevel(LogLevel::kInfo);
  EXPECT_EQ(CountOf("request ends", testing::internal::GetCapturedStderr()), 1);
  EXPECT_EQ(Shown("tandem_requests_total{outcome=\"done\"}"), 1);
  EXPECT_TRUE(last_sink_.expired());
  EXPECT_THAT(errors_, ElementsAre());
}

// Nothing comes any more that would have it look.
TEST_F(RouterCoreTest, NothingOfARequestIsKeptOnceItsTimeIsOver) {
  Start({});
  Post("a", /*time_left_us=*/1'000);
  Publish();
  EXPECT_FALSE(last_sink_.expired());
  clock_.Add(1'000);
  EXPECT_TRUE(Eventually([&] { return last_sink_.expired(); }));
}

TEST_F(RouterCoreTest, NothingOfARequestIsKeptOnceItHasEnded) {
  Start({});
  const RouterCore::Handle handle = Ask("a");
  EXPECT_FALSE(last_sink_.expired());
  core_->CancelRequests({handle});
  Publish();
  EXPECT_EQ(errors_.size(), 1u);
  EXPECT_TRUE(last_sink_.expired());
}

TEST_F(RouterCoreTest, OfManyRequestsThatFailInOneSecondTheLogTellsOfTen) {
  Start({});
  testing::internal::CaptureStderr();
  for (const size_t failed : {30, 60}) {
    for (int i = 0; i < 30; ++i) Ask("a");
    Advance(12'000'000);  // Nobody is there to take them.
    EXPECT_EQ(errors_.size(), failed);
  }
  EXPECT_EQ(CountOf("request failed", testing::internal::GetCapturedStderr()), 20);
}

TEST_F(RouterCoreTest, WhatWaitsAndWhatIsInFlightIsShown) {
  Start({});
  Ask("a");
  EXPECT_EQ(metrics_.requests_waiting.Value(), 1);
  EXPECT_EQ(metrics_.requests_in_flight.Value(), 1);
  const auto session = Connect();
  EXPECT_EQ(session->submits.size(), 1u);
  EXPECT_EQ(metrics_.requests_waiting.Value(), 0);
  EXPECT_EQ(metrics_.requests_in_flight.Value(), 1);
  core_->Stop();
  EXPECT_EQ(metrics_.requests_in_flight.Value(), 0);
  EXPECT_EQ(core_->View().requests_in_flight, 0);
  EXPECT_EQ(Shown("tandem_requests_total{outcome=\"unavailable\"}"), 1);
  EXPECT_THAT(errors_, ElementsAre("the router is shutting down"));
  EXPECT_TRUE(last_sink_.expired());
  EXPECT_TRUE(session->closed);
  EXPECT_EQ(session.use_count(), 1);
}

TEST_F(RouterCoreTest, WhoIsStillInTheQueueOfARouterThatEndsIsTold) {
  const std::string ends = "the router is shutting down";
  Start({}, /*max_waiting=*/1, /*max_queued_commands=*/1);
  std::promise<void> stands, go_on;
  core_->PublishThen([&] {
    stands.set_value();
    go_on.get_future().wait();
  });
  stands.get_future().wait();
  Post("queued");
  std::thread stopper([this] { core_->Stop(); });
  EXPECT_TRUE(Eventually([&] {
    Post("refused");  // The queue is full.
    return errors_.back() == ends;
  }));
  errors_.clear();
  go_on.set_value();
  stopper.join();
  EXPECT_THAT(errors_, ElementsAre(ends));
}

TEST_F(RouterCoreTest, AWorkerIsLostForAsLongAsTheNameHasItsAddress) {
  Start({});
  MemoryBudget budget(int64_t{64} << 20);
  WorkerPoolOptions options{.dns_name = "127.0.0.1:1"};
  options.channel.budget = &budget;
  const SteadyClock clock;
  WorkerPool pool(options, core_.get(), &clock);
  ASSERT_TRUE(Eventually([&] { return pool.resolved(); }));
  Register("127.0.0.1:1");
  core_->OnWatchLost("127.0.0.1:1", worker_);
  Advance(kLongUs);
  EXPECT_EQ(Lost(), 1);
  pool.Close();
  core_->OnExpected({"127.0.0.1:2"});
  EXPECT_EQ(Lost(), 0);
}

}  // namespace
}  // namespace tandem
