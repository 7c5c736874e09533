// What a worker that knows the fleet's secret, and is broken or means harm, can make of its router.

#include "services/router/worker_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "services/router/worker_pool.h"
#include "services/server/channel.h"
#include "services/server/gated_server.h"
#include "services/server/limits.h"
#include "services/server/listen_socket.h"
#include "tests/support/certificates.h"
#include "tests/support/core_worker.h"
#include "tests/support/count_of.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_worker.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/router/router_core_fixture.h"

namespace tandem {
namespace {

class WorkerChannelTest : public RouterCoreFixture {
 protected:
  void Start(const std::vector<FakeWorkerOptions>& workers, int64_t max_index_entries = 1000) {
    MakeCore(max_index_entries);
    WorkerPoolOptions pool{.addresses = more_addresses_};
    pool.channel.budget = &budget_;
    for (const FakeWorkerOptions& worker : workers) {
      workers_.push_back(std::make_unique<FakeWorker>(worker));
      pool.addresses.push_back(workers_.back()->address());
    }
    pool_ = std::make_unique<WorkerPool>(pool, core_.get(), &clock_);
  }
  ~WorkerChannelTest() override {
    pool_.reset();
    core_.reset();
  }

  // How long `channel` waits at `now_us`, once its Watch has ended, until it dials again.
  static int64_t Pause(WorkerChannel* channel, int64_t now_us) {
    int64_t until_us = 0;
    EXPECT_TRUE(Eventually([&] {
      until_us = channel->Tend(now_us);
      return until_us - now_us < 5'000'000;  // Else it has nothing to do yet.
    }));
    return until_us - now_us;
  }
  // A way to the worker and back.
  static void AskForMetrics(WorkerChannel* channel) {
    grpc::ClientContext context;
    v1::ControlRequest request;
    request.mutable_metrics();
    grpc::ByteBuffer answer;
    std::promise<bool> done;
    channel->Control(&context, &request, &answer,
                     [&done](const grpc::Status& status) { done.set_value(status.ok()); });
    EXPECT_TRUE(done.get_future().get());
  }

  std::vector<std::string> more_addresses_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::unique_ptr<WorkerPool> pool_;
};

struct NoSink : RequestSink {
  void OnPrompt(const PromptReport&) override {}
  void OnDelta(const Delta&) override {}
  void OnDone(const RequestReport&) override {}
  void OnError(const absl::Status&, const RequestReport&) override {}
};

// The core's thread stands still until this is let go.
class StandStill {
 public:
  explicit StandStill(RouterCore* core) {
    core->PublishThen([this] {
      MutexLock lock(&mu_);
      stands_ = true;
      changed_.SignalAll();
      while (!over_) changed_.Wait(&mu_);
      stands_ = false;
      changed_.SignalAll();
    });
    MutexLock lock(&mu_);
    while (!stands_) changed_.Wait(&mu_);
  }
  ~StandStill() {
    MutexLock lock(&mu_);
    over_ = true;
    changed_.SignalAll();
    while (stands_) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool stands_ GUARDED_BY(mu_) = false, over_ GUARDED_BY(mu_) = false;
};

// A name drops the address of a worker that drains: it still has streams to end.
TEST_F(WorkerChannelTest, AWorkerThatItsNameHasNoLongerStaysUntilItHasGone) {
  Start({});
  auto leaving = std::make_unique<FakeWorker>(FakeWorkerOptions{.name = "leaving"});
  const FakeWorker coming(FakeWorkerOptions{.name = "coming"});
  const auto left = std::make_shared<std::atomic<bool>>(false);
  WorkerPool pool({.dns_name = "workers:1",
                   .resolve = [left, before = leaving->address(), after = coming.address()](
                                  const std::string&) -> absl::StatusOr<std::vector<std::string>> {
                     return std::vector{*left ? after : before};
                   },
                   .channel = {.budget = &budget_}},
                  core_.get(), &clock_);
  const auto connected = [&pool] {
    std::set<std::string> names;
    for (const auto& channel : pool.channels()) {
      if (channel->connected()) names.insert(channel->worker().name);
    }
    return names;
  };
  ASSERT_TRUE(Eventually([&] { return connected() == std::set<std::string>{"leaving"}; }));
  *left = true;
  EXPECT_TRUE(Eventually([&] {
    return connected() == std::set<std::string>{"coming", "leaving"};
  }));
  leaving.reset();
  EXPECT_TRUE(Eventually([&] { return pool.channels().size() == 1; }));
  EXPECT_EQ(connected(), std::set<std::string>{"coming"});
  EXPECT_EQ(coming.num_watches(), 1) << "who stays is not dialled anew by each lookup";
}

// However often there is something else to do: a name server is asked once a second.
TEST_F(WorkerChannelTest, ANameIsNotLookedUpAgainBeforeItsTime) {
  class StandingClock final : public Clock {
   public:
    int64_t NowUs() const override { return 1'000'000; }
  };
  Start({});
  const FakeWorker worker({});
  const StandingClock clock;
  const auto num_lookups = std::make_shared<std::atomic<int>>(0);
  WorkerPool pool({.dns_name = "workers:1",
                   .resolve = [num_lookups, address = worker.address()](
                                  const std::string&) -> absl::StatusOr<std::vector<std::string>> {
                     ++*num_lookups;
                     return std::vector{address};
                   },
                   .channel = {.budget = &budget_}},
                  core_.get(), &clock);
  ASSERT_TRUE(Eventually([&] { return Connected() && worker.num_heartbeats() > 2; }));
  EXPECT_TRUE(pool.resolved());
  EXPECT_EQ(*num_lookups, 1);
}

TEST_F(WorkerChannelTest, NoNameIsLookedUpAgainBeforeItsAnswerHasCome) {
  class HastyClock final : public Clock {
   public:
    int64_t NowUs() const override { return std::min(reads++, 1'000) * int64_t{2'000'000}; }
    mutable std::atomic<int> reads{0};
  };
  Start({});
  const HastyClock clock;
  std::promise<void> answer;
  const auto num_lookups = std::make_shared<std::atomic<int>>(0);
  WorkerPool pool({.dns_name = "workers:1",
                   .resolve = [num_lookups, answered = answer.get_future().share()](
                                  const std::string&) -> absl::StatusOr<std::vector<std::string>> {
                     ++*num_lookups;
                     answered.wait();
                     return std::vector<std::string>();
                   },
                   .channel = {.budget = &budget_}},
                  core_.get(), &clock);
  ASSERT_TRUE(Eventually([&] { return *num_lookups == 1 && clock.reads >= 1'000; }));
  EXPECT_TRUE(*num_lookups == 1 && !pool.resolved());
  answer.set_value();
  EXPECT_TRUE(Eventually([&] { return pool.resolved(); }));
}

TEST_F(WorkerChannelTest, WhereNobodyRegisteredNothingIsLeftOnceItsNameHasItNoLonger) {
  Start({});
  const ListenSocket silent = *ListenSocket::Open("127.0.0.1:0");  // It takes calls, and no more.
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  WorkerPool pool({.dns_name = "workers:1",
                   .resolve = [gone, address = "127.0.0.1:" + std::to_string(silent.port())](
                                  const std::string&) -> absl::StatusOr<std::vector<std::string>> {
                     if (*gone) return std::vector<std::string>();
                     return std::vector{address};
                   },
                   .channel = {.liveness_scale = 100, .budget = &budget_}},
                  core_.get(), &clock_);
  ASSERT_TRUE(Eventually([&] { return pool.channels().size() == 1; }));
  const std::weak_ptr<WorkerChannel> channel = pool.channels()[0];
  *gone = true;
  ASSERT_TRUE(Eventually([&] { return pool.channels().empty(); }));
  EXPECT_TRUE(Eventually([&] { return channel.expired(); }, std::chrono::seconds(2)));
}

TEST(ResolveWorkersTest, AnAddressIsWhatItIsAndWhatIsNoneIsRefused) {
  using Addresses = std::vector<std::string>;
  EXPECT_EQ(*ResolveWorkers("127.0.0.1:80"), Addresses{"127.0.0.1:80"});
  EXPECT_EQ(*ResolveWorkers("[::1]:80"), Addresses{"[::1]:80"});
  EXPECT_TRUE(absl::IsInvalidArgument(ResolveWorkers("127.0.0.1").status()));
  EXPECT_TRUE(absl::IsUnavailable(ResolveWorkers("no..name:80").status()));
}

// It takes next to no CPU time, whatever the machine does besides.
TEST_F(WorkerChannelTest, AnIdleRouterRests) {
  Start({FakeWorkerOptions()});
  ASSERT_TRUE(Eventually([&] { return Connected(); }));
  const auto seconds = [](clockid_t of) {
    timespec time{};
    clock_gettime(of, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const int heard = workers_[0]->num_heartbeats();
  const double began = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_PROCESS_CPUTIME_ID);
  ASSERT_TRUE(Eventually([&] { return workers_[0]->num_heartbeats() > heard + 5; }));
  EXPECT_LT(seconds(CLOCK_PROCESS_CPUTIME_ID) - used, (seconds(CLOCK_MONOTONIC) - began) / 4);
  EXPECT_EQ(workers_[0]->num_connections(), 1) << "for its Watch and its session";
}

TEST_F(WorkerChannelTest, WhileItsNameCannotBeResolvedAWorkerIsExpectedWhereItWas) {
  Start({});
  const ListenSocket held = *ListenSocket::Hold("127.0.0.1:0");  // Nobody listens there.
  const std::string address = "127.0.0.1:" + std::to_string(held.port());
  const auto num_lookups = std::make_shared<std::atomic<int>>(0);
  WorkerPool pool({.dns_name = "workers:1",
                   .resolve = [num_lookups, address](
                                  const std::string&) -> absl::StatusOr<std::vector<std::string>> {
                     if (++*num_lookups > 1) return absl::UnavailableError("no name server");
                     return std::vector{address};
                   },
                   .channel = {.budget = &budget_}},
                  core_.get(), &clock_);
  ASSERT_TRUE(Eventually([&] { return *num_lookups > 2; }));
  ASSERT_EQ(pool.channels().size(), 1u);
  EXPECT_EQ(pool.channels()[0]->address(), address);
}

// A name server may say nothing for longer than the router lives.
TEST_F(WorkerChannelTest, ALookupThatOutlivesItsPoolTouchesItNoMore) {
  Start({});
  std::promise<void> asked, answer;
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> lookup = held;
  using Place = std::array<std::byte, sizeof(WorkerPool)>;
  alignas(WorkerPool) Place place;
  auto* const pool = new (place.data())
      WorkerPool({.dns_name = "workers:1",
                  .resolve = [&asked, &answer, held = std::move(held)](
                                 const std::string&) -> absl::StatusOr<std::vector<std::string>> {
                    asked.set_value();
                    answer.get_future().wait();
                    return std::vector<std::string>();
                  },
                  .channel = {.budget = &budget_}},
                 core_.get(), &clock_);
  asked.get_future().wait();
  EXPECT_FALSE(pool->resolved());
  pool->~WorkerPool();
  place.fill({});
  answer.set_value();
  ASSERT_TRUE(Eventually([&] { return lookup.expired(); })) << "the lookup's thread is over";
  EXPECT_EQ(place, Place());
}

TEST_F(WorkerChannelTest, AWorkerOfWhichEventsAreMissingIsWatchedAnew) {
  Start({FakeWorkerOptions(), {.name = "other", .model = "another"}});
  EXPECT_TRUE(pool_->resolved()) << "it has no name";
  ASSERT_TRUE(Eventually([&] {
    const FleetView view = core_->View();
    return view.workers.size() == 2 && view.workers[0].connected && view.workers[1].connected;
  }));
  const WorkerId worker = core_->View().workers[0].registration.worker;
  const auto watch = std::make_shared<CountingWatch>();
  for (const auto& events : {KvEvents{.first_sequence = 0, .snapshot = true},
                             KvEvents{.first_sequence = 1000, .snapshot = false}}) {
    core_->OnWatchUpdate(workers_[0]->address(), worker, events, watch);
  }
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_watches() > 1; }));
  const int heard = workers_[1]->num_heartbeats();
  EXPECT_TRUE(Eventually([&] { return workers_[1]->num_heartbeats() > heard + 2; }));
  EXPECT_EQ(workers_[0]->num_sessions(), 1) << "what runs there goes on";
  EXPECT_EQ(workers_[1]->num_watches(), 1) << "and who is complete is left alone";
}

TEST_F(WorkerChannelTest, AMessageThatWaitsIsChargedWithWhatIsMadeOfIt) {
  Start({});
  FakeWorker worker({.num_full_snapshots = 1});
  std::atomic<SessionId> next_session{1};
  const auto channel = Channel(worker.address(), &next_session);
  auto before = std::make_unique<StandStill>(core_.get());
  channel->Tend(clock_.NowUs());
  ASSERT_TRUE(Eventually([&] { return channel->connected(); }));
  // The registration is dealt with, and then nothing until the snapshot has come.
  std::promise<void> go_on;
  core_->PublishThen([&go_on] { go_on.get_future().wait(); });
  before.reset();
  const int64_t least = int64_t{2} * kMaxHashesPerEvent * sizeof(BlockHash);
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() >= least; }));
  for (int i = 0; i < 200; ++i) {
    AskForMetrics(channel.get());
    ASSERT_GE(budget_.held_bytes(), least) << "for as long as it waits";
  }
  go_on.set_value();
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() < least; }));
  channel->Close();
}

TEST_F(WorkerChannelTest, OfAWatchOneMessageWaitsWhileTheRouterIsBusy) {
  Start({});
  // Twice what is parsed of one: the message and what is made of it.
  const int64_t most = int64_t{5} * kMaxHashesPerEvent * sizeof(BlockHash);
  std::unique_ptr<FakeWorker> worker;
  std::shared_ptr<WorkerChannel> channel;
  std::atomic<SessionId> next_session{1};
  {
    StandStill busy(core_.get());
    worker = std::make_unique<FakeWorker>(FakeWorkerOptions{.num_full_snapshots = 60});
    channel = Channel(worker->address(), &next_session);
    channel->Tend(clock_.NowUs());
    ASSERT_TRUE(Eventually([&] { return channel->connected(); }));
    // Many times as long as reading it all would take.
    for (int i = 0; i < 500; ++i) {
      AskForMetrics(channel.get());
      ASSERT_LE(budget_.held_bytes(), most);
    }
  }
  EXPECT_TRUE(Eventually([&] { return worker->num_heartbeats() > 0; })) << "then all are heard";
  EXPECT_EQ(worker->num_snapshots(), 60);
  EXPECT_EQ(worker->num_watches(), 1);
  channel->Close();
  EXPECT_EQ(budget_.num_refused(), 0);
}

TEST_F(WorkerChannelTest, AMessageWithoutRoomEndsItsWatch) {
  MemoryBudget::Holding others(&budget_, "others");
  ASSERT_TRUE(others.Set(budget_.limit_bytes() - 1000).ok());
  Start({{.num_full_snapshots = 1}});
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_watches() > 2; }));
  EXPECT_GE(budget_.num_refused(), 2);
  ASSERT_TRUE(others.Set(0).ok());
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_heartbeats() > 5; }));
}

// A worker that reads no commands, and what it leaves of them.
class UnreadCommandsTest : public WorkerChannelTest {
 protected:
  static constexpr int64_t kPromptTokens = 16'000, kTokenBytes = 5, kFreeBytes = 1 << 20;
  static constexpr int kRequests = 100;

  void Submit() {
    ClientRequest asked;
    asked.spec = SpecOfPrompt(std::vector<int32_t>(kPromptTokens, INT32_MAX), 1);
    asked.spec.sampling.max_tokens = 1;
    asked.model = FakeWorkerOptions().model;
    std::vector<RouterCore::NewRequest> requests(1);
    requests[0] = {core_->NewHandle(), std::move(asked), std::make_shared<NoSink>()};
    core_->StartRequests("", std::move(requests));
  }
  void StartAndFill() {
    Start({{.max_model_tokens = 1 << 20, .reads_no_commands = true}});
    ASSERT_TRUE(Eventually([&] { return Connected(); }));
    for (int i = 0; i < kRequests; ++i) Submit();
    ASSERT_TRUE(Eventually([&] {
      return budget_.held_bytes() >= kRequests * kTokenBytes * kPromptTokens - kFreeBytes;
    })) << budget_.held_bytes();
    EXPECT_EQ(workers_[0]->num_sessions(), 1);
    EXPECT_EQ(budget_.num_refused(), 0);
  }
};

TEST_F(UnreadCommandsTest, AreReadOneAfterTheOtherByAWorkerThatDoes) {
  Start({{.max_model_tokens = 1 << 20}});
  ASSERT_TRUE(Eventually([&] { return Connected(); }));
  for (int i = 0; i < 5; ++i) Submit();
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_submits() == 5; }));
}

TEST_F(UnreadCommandsTest, AreChargedAndEndTheirSessionWithoutRoom) {
  StartAndFill();
  MemoryBudget::Holding others(&budget_, "others");
  ASSERT_TRUE(others.Set(budget_.limit_bytes() - budget_.held_bytes()).ok());
  Submit();
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_sessions() > 1; }));
  EXPECT_GT(budget_.num_refused(), 0);
  ASSERT_TRUE(others.Set(0).ok());
}

TEST_F(UnreadCommandsTest, GiveWayToWhoHoldsLess) {
  StartAndFill();
  MemoryBudget::Holding others(&budget_, "others");
  ASSERT_TRUE(others.Set(1).ok());
  MemoryBudget::Holding many(&budget_, "many");  // Which nobody can cut.
  ASSERT_TRUE(many.Set(budget_.limit_bytes() - budget_.held_bytes()).ok());
  EXPECT_TRUE(others.Set(1000).ok());
  EXPECT_EQ(budget_.num_cut(), 1);
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_sessions() > 1; }));
  ASSERT_TRUE(many.Set(0).ok());
}

TEST_F(WorkerChannelTest, ANewNameReplacesTheOneThatItsAddressHad) {
  Start({{.name = "honest"}, {.name = "many", .renames = true, .ends_watches = true}});
  ASSERT_TRUE(Eventually([&] { return workers_[1]->num_watches() > 4; }));
  ASSERT_TRUE(Eventually([&] { return workers_[0]->num_heartbeats() > 0; }));
  EXPECT_LE(core_->View().workers.size(), 2u);
}

TEST_F(WorkerChannelTest, AWorkerWithTwoAddressesIsWatchedAtOne) {
  FakeWorker worker({.name = "twice"});
  more_addresses_ = {worker.address(), "localhost:" + std::to_string(worker.port())};
  Start({});
  ASSERT_TRUE(Eventually([&] { return worker.num_watches() > 1; }));
  ASSERT_TRUE(Eventually([&] { return worker.num_heartbeats() > 60; }));
  EXPECT_LT(worker.num_watches(), 6);
  EXPECT_LT(worker.num_sessions(), 6);
  const FleetView view = core_->View();
  ASSERT_EQ(view.workers.size(), 1u);
  EXPECT_TRUE(view.workers[0].healthy);
}

TEST_F(WorkerChannelTest, ASessionIsOpenedOnceTheRegistrationIsTaken) {
  Start({});
  auto worker = std::make_unique<FakeWorker>(FakeWorkerOptions());
  std::atomic<SessionId> next_session{1};
  const auto channel = Channel(worker->address(), &next_session);
  {
    StandStill busy(core_.get());
    channel->Tend(clock_.NowUs());
    ASSERT_TRUE(Eventually([&] { return channel->connected(); }));
    channel->Tend(clock_.NowUs());
    EXPECT_EQ(next_session, 1);
  }
  EXPECT_TRUE(Eventually([&] {
    channel->Tend(clock_.NowUs());
    return worker->num_sessions() == 1;
  }));
  // So it is in the worker's next life.
  const FakeWorkerOptions again{.port = worker->port()};
  worker.reset();
  ASSERT_TRUE(Eventually([&] { return !channel->connected() && !Connected(); }));
  ASSERT_TRUE(Eventually([&] { return core_->View().lost.size() == 1; }));
  EXPECT_THAT(core_->View().lost[0].why, testing::HasSubstr("its connection ended"));
  worker = std::make_unique<FakeWorker>(again);
  {
    StandStill busy(core_.get());
    ASSERT_TRUE(Eventually([&] {
      channel->Tend(clock_.NowUs());
      return channel->connected();
    }));
    for (const int64_t ahead_us : {10'000'000, 20'000'000}) {  // However long it would pause.
      channel->Tend(clock_.NowUs() + ahead_us);
    }
    EXPECT_EQ(next_session, 2);
  }
  EXPECT_TRUE(Eventually([&] {
    channel->Tend(clock_.NowUs());
    return Connected();
  }));
  EXPECT_EQ(next_session, 3);
  channel->Close();
}

// Who has restarted has another: the core would take its batches for the ones it waits for.
TEST_F(WorkerChannelTest, ASessionOfAnotherLifeThanItsWatchIsNone) {
  Start({{.other_incarnation = true}});
  ASSERT_TRUE(Eventually([&] { return workers_[0]->num_sessions() > 2; }));
  ASSERT_EQ(core_->View().workers.size(), 1u);
  EXPECT_FALSE(Connected());
}

TEST_F(WorkerChannelTest, ANewRegistrationEndsTheSessionOfTheOneBefore) {
  Start({});
  FakeWorker worker({.renames = true, .silent_sessions = true});
  std::atomic<SessionId> next_session{1};
  const auto channel = Channel(worker.address(), &next_session);
  const auto sessions = [&](int number) {
    return Eventually([&] {
      channel->Tend(clock_.NowUs());
      return worker.num_sessions() == number;
    });
  };
  ASSERT_TRUE(sessions(1));
  channel->RestartWatch();
  EXPECT_TRUE(sessions(2));
  channel->Close();
}

TEST_F(WorkerChannelTest, TheSessionIsAtTheAddressThatIsWatched) {
  Start({});
  FakeWorker worker({.name = "twice"});
  std::atomic<SessionId> next_session{1};
  const auto first = Channel(worker.address(), &next_session);
  const auto second = Channel("localhost:" + std::to_string(worker.port()), &next_session);
  ASSERT_TRUE(Eventually([&] {
    first->Tend(clock_.NowUs());
    return Connected();
  }));
  first->RestartWatch();
  ASSERT_TRUE(Eventually([&] { return !first->connected(); }));
  ASSERT_TRUE(Eventually([&] {
    second->Tend(clock_.NowUs());
    return worker.num_watches() == 2 && second->connected();
  }));
  const int heard = worker.num_heartbeats();
  ASSERT_TRUE(Eventually([&] {
    first->Tend(clock_.NowUs());
    second->Tend(clock_.NowUs());
    return worker.num_heartbeats() > heard + 60;
  }));
  EXPECT_TRUE(second->connected());
  EXPECT_TRUE(Connected());
  EXPECT_LT(worker.num_sessions(), 6);
  first->Close();
  second->Close();
}

// Each registers, so that each was good for something.
TEST_F(WorkerChannelTest, AWatchThatEndsAtOnceIsDialledEverMoreRarely) {
  Start({{.name = "clock"}, {.name = "short", .ends_watches = true}});
  ASSERT_TRUE(Eventually([&] { return workers_[0]->num_heartbeats() > 60; }));
  EXPECT_GT(workers_[1]->num_watches(), 3);
  EXPECT_LT(workers_[1]->num_watches(), 60) << "one a heartbeat of the other";
}

TEST_F(WorkerChannelTest, AWatchHasOneRegistrationAndItComesFirst) {
  Start({{.name = "first"},
         {.name = "late", .registers_last = true},
         {.name = "again", .registers_again = true}});
  ASSERT_TRUE(Eventually([&] { return workers_[1]->num_watches() > 2; }));
  ASSERT_TRUE(Eventually([&] { return workers_[2]->num_watches() > 2; }));
  EXPECT_TRUE(Eventually([&] {
    const FleetView view = core_->View();
    return view.workers.size() == 2 && view.workers[0].registration.worker.name == "again" &&
           view.workers[1].registration.worker.name == "first";
  }));
  EXPECT_EQ(workers_[0]->num_watches(), 1);
}

TEST_F(WorkerChannelTest, WhoIsNotHeardOfIsToldWithTheReason) {
  RouterCoreOptions options;
  options.owner.router_incarnation = 1;
  core_ = *RouterCore::Create(options, &clock_, &metrics_);
  std::atomic<SessionId> next_session{1};
  std::atomic<bool> woken{false};
  // A port on which nobody listens.
  const ListenSocket held = *ListenSocket::Hold("127.0.0.1:0");
  const auto channel = std::make_shared<WorkerChannel>(
      "127.0.0.1:" + std::to_string(held.port()), WorkerChannelOptions{.budget = &budget_},
      core_.get(), &next_session, [&] { woken = true; });
  testing::internal::CaptureStderr();
  channel->Tend(1);
  EXPECT_TRUE(Eventually([&] { return woken.load(); }));
  for (const int64_t now_us : {11'000'000, 12'000'000, 30'000'000}) channel->Tend(now_us);
  channel->Close();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("Failed to connect to remote host: Connection refused"));
  EXPECT_EQ(CountOf("no worker registers", log), 1) << log;
}

TEST_F(WorkerChannelTest, AWorkerThatSaysWhatItMustNotIsLeftAloneForAWhile) {
  Start({});
  auto worker = std::make_unique<FakeWorker>(FakeWorkerOptions{.registers_last = true});
  std::atomic<SessionId> next_session{1};
  const auto channel = Channel(worker->address(), &next_session);
  channel->Tend(1);
  EXPECT_EQ(Pause(channel.get(), 2), 2'000'000);
  worker.reset();
  channel->Tend(2'000'002);
  EXPECT_EQ(Pause(channel.get(), 2'000'003), 250'000) << "nothing wrong is said any more";
  channel->Close();
}

TEST_F(WorkerChannelTest, AWatchThatStoodForASecondIsDialledAgainAtOnce) {
  Start({});
  const FakeWorker worker({.ends_watches = true});
  std::atomic<SessionId> next_session{1};
  const auto channel = Channel(worker.address(), &next_session);
  int64_t now_us = 1;
  const auto pause = [&](int64_t stands_us) {
    channel->Tend(now_us);
    now_us += stands_us;
    const int64_t pause_us = Pause(channel.get(), now_us);
    now_us += pause_us;
    return pause_us;
  };
  EXPECT_EQ(pause(1), 20'000);
  EXPECT_EQ(pause(999'999), 40'000);
  EXPECT_EQ(pause(1'000'000), 20'000);
  EXPECT_EQ(pause(1), 40'000);
  channel->Close();
}

// It takes as long to say so where packets are dropped.
TEST_F(WorkerChannelTest, WhereNobodyAnswersIsDialledEverMoreRarely) {
  Start({});
  const ListenSocket held = *ListenSocket::Hold("127.0.0.1:0");  // Nobody listens there.
  std::atomic<SessionId> next_session{1};
  const auto channel = Channel("127.0.0.1:" + std::to_string(held.port()), &next_session);
  channel->Tend(1);
  EXPECT_EQ(Pause(channel.get(), 1'500'001), 20'000);
  channel->Tend(1'520'001);
  EXPECT_EQ(Pause(channel.get(), 3'000'001), 40'000);
  channel->Close();
}

class AskedForChallenges final : public EarlyService {
 public:
  explicit AskedForChallenges(OpenCalls* calls) : EarlyService(calls) {
    AddUnary<v1::ChallengeRequest, v1::ChallengeAnswer>("/tandem.v1.Fleet/Challenge",
                                                        [this](const auto&, v1::ChallengeAnswer*) {
                                                          ++num_calls;
                                                          return absl::OkStatus();
                                                        });
  }

  std::atomic<int> num_calls{0};
};

TEST_F(WorkerChannelTest, WhoWaitsForAWorkerLearnsOfNewAuthorities) {
  const TestAuthority before, now;
  TempFolder folder;
  const auto open = [&](const std::string& who, const TestAuthority& of, const std::string& ca) {
    const TestCertificate shown = of.Issue("fleet");
    return *FleetTls::Open({.certificate = folder.Write(who + ".pem", shown.pem),
                            .key = folder.Write(who + ".key", shown.key),
                            .authorities = folder.Write(who + ".ca", ca),
                            .name = "fleet"});
  };
  const std::string both = before.pem() + now.pem();
  const auto theirs = open("worker", now, both), ours = open("router", before, before.pem());
  std::atomic<int> num_ok{0}, num_failed{0};
  theirs->identity()->SetOnHandshake([&](bool ok) { ++(ok ? num_ok : num_failed); });
  OpenCalls calls(&budget_, {});
  GatedServer server({.gate = {.address = "127.0.0.1:0",
                               .tls = {.identity = theirs->identity()},
                               .budget = &budget_,
                               .max_streams = 8,
                               .max_connections = 8},
                      .services = {},
                      .health = {}},
                     &calls);
  AskedForChallenges service(&calls);
  grpc::ServerBuilder builder;
  ConfigureServer(1, &builder);
  builder.RegisterService(&service);
  ASSERT_TRUE(server.Open(&builder).ok());
  server.Serve();

  RouterCoreOptions options;
  options.owner.router_incarnation = 1;
  core_ = *RouterCore::Create(options, &clock_, &metrics_);
  WorkerPoolOptions pool{.addresses = {"127.0.0.1:" + std::to_string(server.port())}};
  pool.channel.budget = &budget_;
  pool.channel.tls = ours.get();
  pool.channel.secret = *FleetSecret::Parse(std::string(32, 's'));
  pool_ = std::make_unique<WorkerPool>(pool, core_.get(), &clock_);
  // The router looks at what it is shown once the handshake is over.
  ASSERT_TRUE(Eventually([&] { return num_ok > 1; }));
  EXPECT_EQ(service.num_calls, 0);
  folder.Write("router.ca", both);
  ours->identity()->Look();
  EXPECT_TRUE(Eventually([&] { return service.num_calls > 0; }));
  pool_.reset();
}

}  // namespace
}  // namespace tandem
