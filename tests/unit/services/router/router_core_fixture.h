// A router's core, for channels to workers to report to.

#ifndef TANDEM_TESTS_UNIT_SERVICES_ROUTER_ROUTER_CORE_FIXTURE_H_
#define TANDEM_TESTS_UNIT_SERVICES_ROUTER_ROUTER_CORE_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "services/router/worker_channel.h"

namespace tandem {

class RouterCoreFixture : public testing::Test {
 protected:
  void MakeCore(int64_t max_index_entries = 1000) {
    RouterCoreOptions options;
    options.owner.router_incarnation = 1;
    options.owner.max_index_entries = max_index_entries;
    core_ = *RouterCore::Create(options, &clock_, &metrics_);
  }
  // A channel that no pool tends.
  std::shared_ptr<WorkerChannel> Channel(const std::string& address,
                                         std::atomic<SessionId>* next_session) {
    return std::make_shared<WorkerChannel>(address, WorkerChannelOptions{.budget = &budget_},
                                           core_.get(), next_session, [] {});
  }
  // With the only worker.
  bool Connected() const {
    const FleetView view = core_->View();
    return view.workers.size() == 1 && view.workers[0].connected;
  }

  const SteadyClock clock_;
  MetricsRegistry registry_;
  RouterMetrics metrics_{&registry_};
  MemoryBudget budget_{int64_t{256} << 20};
  std::unique_ptr<RouterCore> core_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SERVICES_ROUTER_ROUTER_CORE_FIXTURE_H_
