#include "services/router/router_core.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <string>

#include "runtime/fleet/fleet.h"
#include "services/router/worker_pool.h"
#include "tests/support/eventually.h"

namespace tandem {
namespace {

class SetClock final : public Clock {
 public:
  int64_t NowUs() const override { return now_us_; }
  void Add(int64_t us) { now_us_ += us; }

 private:
  std::atomic<int64_t> now_us_{1'000'000};
};

class NoWatch final : public WatchReader {
 public:
  void ReadNext() override {}
  void Refuse() override {}
};

class RouterCoreTest : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& expected) {
    RouterCoreOptions options;
    options.owner.router_incarnation = 1;
    options.expected_workers = expected;
    core_ = *RouterCore::Create(options, &clock_, &metrics_);
  }

  void Register(const std::string& address) {
    WorkerRegistration registration;
    registration.worker = worker_;
    registration.role = WorkerRole::kDecode;
    registration.block_tokens = 16;
    core_->OnWatchUpdate(address, worker_, registration, std::make_shared<NoWatch>());
  }

  // By less at a time than what the router takes for a pause of its own.
  void Advance(int64_t us) {
    for (constexpr int64_t kStepUs = 500'000; us > 0; us -= kStepUs) {
      clock_.Add(kStepUs);
      Publish();
      Publish();  // It has looked at the clock in between.
    }
  }

  void Publish() {
    std::promise<void> done;
    core_->PublishThen([&done] { done.set_value(); });
    done.get_future().wait();
  }

  // Of decode workers; of all roles together that nobody is.
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
  double Lost() { return States()["lost"]; }

  static constexpr int64_t kLongUs = Fleet::kForgetAfterUs + 2'000'000;

  const WorkerId worker_{.name = "d", .incarnation = 1};
  SetClock clock_;
  MetricsRegistry registry_;
  RouterMetrics metrics_{&registry_};
  int num_series_ = 0;
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

TEST_F(RouterCoreTest, AWorkerThatNobodyExpectsIsForgotten) {
  Start({});
  Register("a:1");
  core_->OnWatchLost("a:1", worker_);
  Advance(kLongUs);
  EXPECT_EQ(Lost(), 0);
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
