#include "services/router/metrics_collector.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "services/router/worker_pool.h"

namespace tandem {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

WorkerMetricsHistory::Families Report(double counter, double gauge, uint64_t observations) {
  MetricFamily counters{.name = "c_total", .help = "h", .type = MetricType::Counter};
  counters.metric.emplace_back();
  counters.metric.back().label.push_back({.name = "kind", .value = "a"});
  counters.metric.back().counter.value = counter;
  MetricFamily gauges{.name = "g", .help = "h", .type = MetricType::Gauge};
  gauges.metric.emplace_back();
  gauges.metric.back().gauge.value = gauge;
  MetricFamily histograms{.name = "h_seconds", .help = "h", .type = MetricType::Histogram};
  histograms.metric.emplace_back();
  auto& histogram = histograms.metric.back().histogram;
  histogram.sample_count = observations;
  histogram.sample_sum = static_cast<double>(observations);
  histogram.bucket = {{.cumulative_count = observations, .upper_bound = 1}};
  MetricFamily others = counters;
  others.name = "other_total";
  others.metric[0].counter.value = 100 * counter;
  return {counters, gauges, histograms, others};
}

const MetricFamily* Find(const WorkerMetricsHistory::Families& families, const std::string& name) {
  for (const MetricFamily& family : families) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

TEST(WorkerMetricsTest, CountersAndHistogramsAddUpOverIncarnations) {
  WorkerMetricsHistory metrics;
  metrics.Report(1, Report(5, 1, 2));
  metrics.Report(1, Report(7, 2, 3));
  metrics.Report(2, Report(1, 4, 1));
  metrics.Report(3, Report(2, 9, 1));
  const WorkerMetricsHistory::Families sum = metrics.Sum(/*alive=*/true);
  EXPECT_EQ(Find(sum, "c_total")->metric[0].counter.value, 10);
  EXPECT_EQ(Find(sum, "other_total")->metric[0].counter.value, 1000);
  EXPECT_EQ(Find(sum, "h_seconds")->metric[0].histogram.sample_count, 5);
  EXPECT_EQ(Find(sum, "h_seconds")->metric[0].histogram.sample_sum, 5);
  EXPECT_EQ(Find(sum, "h_seconds")->metric[0].histogram.bucket[0].cumulative_count, 5);
  EXPECT_EQ(Find(sum, "g")->metric[0].gauge.value, 9);
  EXPECT_EQ(Find(metrics.Sum(/*alive=*/false), "g"), nullptr) << "of no life";
}

// Another version of the worker has others.
TEST(WorkerMetricsTest, ALifeOfOtherBucketsIsCounted) {
  WorkerMetricsHistory metrics;
  WorkerMetricsHistory::Families more = Report(1, 1, 3);
  more[2].metric[0].histogram.bucket.resize(10'000, {.cumulative_count = 3, .upper_bound = 2});
  metrics.Report(1, Report(1, 1, 4));
  metrics.Report(2, more);
  metrics.Report(3, Report(1, 1, 4));
  metrics.Report(4, more);
  const WorkerMetricsHistory::Families sum = metrics.Sum(/*alive=*/true);
  const ClientMetric::Histogram& histogram = Find(sum, "h_seconds")->metric[0].histogram;
  EXPECT_EQ(histogram.sample_count, 14);
  ASSERT_EQ(histogram.bucket.size(), 10'000u);
  EXPECT_EQ(histogram.bucket[0].cumulative_count, 14);
  EXPECT_EQ(histogram.bucket[1].cumulative_count, 3) << "of the present life";
}

TEST(WorkerMetricsTest, ADeadWorkerKeepsItsCountersAndLosesItsGauges) {
  WorkerMetricsHistory metrics;
  metrics.Report(1, Report(5, 1, 2));
  const WorkerMetricsHistory::Families sum = metrics.Sum(/*alive=*/false);
  EXPECT_EQ(Find(sum, "c_total")->metric[0].counter.value, 5);
  EXPECT_EQ(Find(sum, "h_seconds")->metric[0].histogram.sample_count, 2);
  EXPECT_EQ(Find(sum, "g"), nullptr);
}

TEST(WorkerMetricsTest, ALabelOnlyOfAnEarlierLifeStays) {
  WorkerMetricsHistory metrics;
  metrics.Report(1, Report(5, 1, 2));
  metrics.Report(2, {});
  EXPECT_EQ(Find(metrics.Sum(true), "c_total")->metric[0].counter.value, 5);
}

TEST(WorkerMetricsTest, NewLabelsOfEveryLifeAreNotKeptForEver) {
  WorkerMetricsHistory metrics;
  size_t bytes = 0;
  for (uint64_t life = 1; bytes < 3 * WorkerMetricsHistory::kMaxFinishedBytes; ++life) {
    WorkerMetricsHistory::Families families = Report(1, 1, 1);
    std::string value = std::to_string(life);
    value.resize(100'000, 'x');
    bytes += value.size();
    families[0].metric.emplace_back().label.push_back({.name = "kind", .value = value});
    metrics.Report(life, std::move(families));
  }
  const WorkerMetricsHistory::Families sum = metrics.Sum(true);
  const size_t kept = Find(sum, "c_total")->metric.size();
  EXPECT_GT(kept, 10u);
  EXPECT_LT(kept, WorkerMetricsHistory::kMaxFinishedBytes / 100'000 + 5);
  EXPECT_GT(Find(sum, "c_total")->metric[0].counter.value, 20) << "what is known goes on";
}

TEST(MetricsCollectorTest, WhoWaitsTogetherSharesAPage) {
  using Page = std::shared_ptr<const std::string>;
  const SteadyClock clock;
  MetricsRegistry registry;
  RouterMetrics metrics(&registry);
  MemoryBudget budget(int64_t{64} << 20);
  RouterCoreOptions options;
  options.owner.router_incarnation = 1;
  const auto core = *RouterCore::Create(options, &clock, &metrics);
  WorkerPoolOptions workers;
  workers.channel.budget = &budget;
  WorkerPool pool(workers, core.get(), &clock);
  MetricsCollector collector(&registry, core.get(), &pool);
  std::promise<Page> one, other;
  collector.Collect([&](const Page&) {  // Who comes now waits for the next.
    collector.Collect([&](const Page& page) { one.set_value(page); });
    collector.Collect([&](const Page& page) { other.set_value(page); });
  });
  const Page page = one.get_future().get();
  EXPECT_NE(page->find("tandem_"), std::string::npos);
  EXPECT_EQ(page, other.get_future().get());
}

}  // namespace
}  // namespace tandem
