// Everybody's metrics on one page: the router's own, and every worker's with the label `worker`.
//
// Workers are asked at the scrape, all at once, for at most kScrapeTimeout; one that does not
// answer is shown as it last was. Who asks while they are being asked has the next page, with all
// others who do: however many ask, workers and core are asked once at a time. They are also asked
// every kRefreshPeriod, so that a worker that dies between two scrapes takes little with it.
// Counters and histograms never go back: those of a worker's earlier lives are added to the present
// one's, and stay when the worker is gone, until another name is heard at its address. Gauges speak
// of the present: those of a worker that is not connected are left out. Whatever workers say, what
// is kept of each is bounded.

#ifndef TANDEM_SERVICES_ROUTER_METRICS_COLLECTOR_H_
#define TANDEM_SERVICES_ROUTER_METRICS_COLLECTOR_H_

#include <prometheus/metric_family.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/periodic_thread.h"
#include "services/router/worker_pool.h"
#include "services/server/metrics_registry.h"

namespace tandem {

// What is known of one worker's metrics over all its lives.
class WorkerMetricsHistory {
 public:
  using Families = std::vector<prometheus::MetricFamily>;

  // The worker reports in this incarnation; another one than before is its next life.
  void Report(uint64_t incarnation, Families families);
  // Monotonic over incarnations; without gauges unless `alive`.
  Families Sum(bool alive) const;

  // What is kept of lives before the present one, about; past it new labels' samples are not.
  static constexpr size_t kMaxFinishedBytes = 2 << 20;

 private:
  uint64_t incarnation_ = 0;
  Families current_;
  Families finished_;  // Counters and histograms of the lives before.
};

class MetricsCollector {
 public:
  static constexpr std::chrono::milliseconds kScrapeTimeout{300};
  static constexpr std::chrono::milliseconds kRefreshPeriod{1000};

  // Borrows all.
  MetricsCollector(MetricsRegistry* registry, RouterCore* core, WorkerPool* pool);
  ~MetricsCollector();  // Waits for what is under way.

  // Before the core stops, which answers no more then. Idempotent.
  void StopRefreshing() { refresher_.Stop(); }

  // One page for all who wait: each copies it when it has room for it.
  using Done = std::function<void(std::shared_ptr<const std::string> page)>;
  // Calls `done` once, on any thread.
  void Collect(Done done) EXCLUDES(mu_);

 private:
  class Scrape;

  void BeginScrape() EXCLUDES(mu_);
  void OnScraped(std::vector<Done> done) EXCLUDES(mu_);
  void OnReport(const std::string& address, const WorkerId& worker,
                WorkerMetricsHistory::Families families) EXCLUDES(mu_);
  std::string Render() EXCLUDES(mu_);

  MetricsRegistry* const registry_;
  RouterCore* const core_;
  WorkerPool* const pool_;
  Mutex mu_;
  CondVar idle_;
  bool scraping_ GUARDED_BY(mu_) = false;
  std::vector<Done> next_ GUARDED_BY(mu_);  // For the page after that.
  struct Reported {
    std::string address;
    WorkerMetricsHistory metrics;
  };
  std::map<std::string, Reported> workers_ GUARDED_BY(mu_);  // By name. One for each address.
  PeriodicThread refresher_;                                 // Last: uses the rest.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_METRICS_COLLECTOR_H_
