#include "services/router/router_metrics.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_format.h"
#include "tests/support/metric_value.h"

namespace tandem {
namespace {

class RouterMetricsTest : public testing::Test {
 protected:
  double Shown(const std::string& sample) {
    return MetricValue(MetricsToText(registry_.Collect()), sample);
  }

  MetricsRegistry registry_;
  RouterMetrics metrics_{&registry_};
};

// Alerts and dashboards tell them apart by their names and labels alone.
TEST_F(RouterMetricsTest, EachOfTheOwnersCountersIsShownAsWhatItIs) {
  RequestCounters counters;
  uint64_t next = 0;
  for (uint64_t& count : counters.resumes) count = ++next;
  for (uint64_t& count : counters.outcomes) count = ++next;
  for (auto& route : counters.routes) {
    for (uint64_t& count : route) count = ++next;
  }
  for (uint64_t* count : {&counters.refusals, &counters.stale_events, &counters.protocol_errors,
                          &counters.determinism_violations}) {
    *count = ++next;
  }
  for (int publication = 0; publication < 2; ++publication) metrics_.Publish(counters);

  double expected = 0;
  for (size_t i = 0; i < kNumResumeReasons; ++i) {
    EXPECT_EQ(Shown(absl::StrFormat("tandem_stream_resumes_total{reason=\"%s\"}",
                                    ResumeReasonName(static_cast<ResumeReason>(i)))),
              ++expected);
  }
  for (size_t i = 0; i < kNumRequestOutcomes; ++i) {
    EXPECT_EQ(Shown(absl::StrFormat("tandem_requests_total{outcome=\"%s\"}",
                                    RequestOutcomeName(static_cast<RequestOutcome>(i)))),
              ++expected);
  }
  for (size_t i = 0; i < kNumRouteReasons; ++i) {
    for (const char* const prefill : {"no", "yes"}) {
      EXPECT_EQ(Shown(absl::StrFormat("tandem_attempts_total{prefill=\"%s\",reason=\"%s\"}",
                                      prefill, RouteReasonName(static_cast<RouteReason>(i)))),
                ++expected);
    }
  }
  for (const char* const total :
       {"tandem_worker_refusals_total", "tandem_stale_events_total", "tandem_protocol_errors_total",
        "tandem_determinism_violations_total"}) {
    EXPECT_EQ(Shown(total), ++expected);
  }
}

TEST_F(RouterMetricsTest, WorkersAreShownByRoleAndState) {
  WorkerCounts counts;
  counts.of(WorkerRole::kPrefill, WorkerState::kLost) = 2;
  counts.of(WorkerRole::kDecode, WorkerState::kFailing) = 3;
  counts.of(WorkerRole::kHybrid, WorkerState::kDraining) = 4;
  counts.of(WorkerRole::kHybrid, WorkerState::kHealthy) = 5;
  metrics_.Publish(counts);
  EXPECT_EQ(Shown("tandem_workers{role=\"prefill\",state=\"lost\"}"), 2);
  EXPECT_EQ(Shown("tandem_workers{role=\"decode\",state=\"failing\"}"), 3);
  EXPECT_EQ(Shown("tandem_workers{role=\"hybrid\",state=\"draining\"}"), 4);
  EXPECT_EQ(Shown("tandem_workers{role=\"hybrid\",state=\"healthy\"}"), 5);
  metrics_.Publish(WorkerCounts());
  EXPECT_EQ(Shown("tandem_workers{role=\"hybrid\",state=\"healthy\"}"), 0) << "they have gone";
}

}  // namespace
}  // namespace tandem
