// The metrics of one process, and their way to another process.
//
// A thin shell around prometheus-cpp: a metric is created once, by name, with its help, and updated
// through the returned reference, which lives as long as the registry, but for a gauge that is
// removed. Names carry the prefix tandem_ and end in their unit (_seconds, _bytes, _total).
//
// A router collects its workers' families over Control, labels them and merges them with its own:
//
//   std::vector<prometheus::MetricFamily> all = registry.Collect();
//   TANDEM_ASSIGN_OR_RETURN(auto theirs, MetricsFromProto(answer.metrics()));
//   AddLabel("worker", name, &theirs);
//   MergeFamilies(std::move(theirs), &all);
//   std::string text = MetricsToText(all);
//
// Any thread.

#ifndef TANDEM_SERVICES_SERVER_METRICS_REGISTRY_H_
#define TANDEM_SERVICES_SERVER_METRICS_REGISTRY_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"
#include "tandem/v1/common.pb.h"

namespace tandem {

using MetricLabels = std::map<std::string, std::string>;

class MetricsRegistry {
 public:
  // Registers tandem_guard_rejections_total{guard} for every TANDEM_GUARD of the process,
  // tandem_log_lines_dropped_total, tandem_build_info and tandem_start_time_seconds.
  MetricsRegistry();

  // The metric of that name and these labels, made at the first call.
  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const MetricLabels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help,
                           const MetricLabels& labels = {});
  // Takes a gauge of that name away; nobody uses the reference any more.
  void Remove(const std::string& name, const std::string& help, prometheus::Gauge* gauge);
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const std::vector<double>& upper_bounds,
                                   const MetricLabels& labels = {});

  // Runs at the start of every Collect: sets gauges whose value lives elsewhere.
  void AddRefresh(std::function<void()> refresh) EXCLUDES(mu_);

  std::vector<prometheus::MetricFamily> Collect() EXCLUDES(mu_);

 private:
  prometheus::Registry registry_;
  Mutex mu_;
  std::vector<std::function<void()>> refreshes_ GUARDED_BY(mu_);
};

// From 1 ms to 1 minute (prompts, transfers), and from 100 µs to 10 s (steps).
const std::vector<double>& SecondsBuckets();
const std::vector<double>& ShortSecondsBuckets();

void MetricsToProto(const std::vector<prometheus::MetricFamily>& families,
                    v1::MetricsSnapshot* out);
// InvalidArgument for bad names, types and sizes.
absl::StatusOr<std::vector<prometheus::MetricFamily>> MetricsFromProto(
    const v1::MetricsSnapshot& in);

// Appends the label to every sample that does not have one of that name.
void AddLabel(std::string_view name, std::string_view value,
              std::vector<prometheus::MetricFamily>* families);

// Appends samples to the family of the same name and type; others become families of their own.
void MergeFamilies(std::vector<prometheus::MetricFamily> from,
                   std::vector<prometheus::MetricFamily>* into);

// The text exposition format 0.0.4.
std::string MetricsToText(const std::vector<prometheus::MetricFamily>& families);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_METRICS_REGISTRY_H_
