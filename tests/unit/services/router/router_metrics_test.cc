#include "services/router/router_metrics.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

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

TEST_F(RouterMetricsTest, WhatTheRouterCountsIsShownAsWhatItIs) {
  const std::pair<prometheus::Counter*, const char*> counters[] = {
      {&metrics_.prompt_tokens, "tandem_prompt_tokens_total"},
      {&metrics_.cached_prompt_tokens, "tandem_cached_prompt_tokens_total"},
      {&metrics_.generated_tokens, "tandem_generated_tokens_total"},
      {&metrics_.slow_readers, "tandem_slow_readers_total"},
  };
  const std::pair<prometheus::Gauge*, const char*> gauges[] = {
      {&metrics_.requests_in_flight, "tandem_requests_in_flight"},
      {&metrics_.requests_waiting, "tandem_queue_depth"},
      {&metrics_.http_connections, "tandem_http_connections"},
      {&metrics_.workers_unseen, "tandem_workers_unseen"},
  };
  const std::pair<prometheus::Histogram*, const char*> histograms[] = {
      {&metrics_.ttft_seconds, "tandem_ttft_seconds_sum"},
      {&metrics_.ttft_text_seconds, "tandem_ttft_part_seconds_sum{part=\"text\"}"},
      {&metrics_.ttft_queue_seconds, "tandem_ttft_part_seconds_sum{part=\"queue\"}"},
      {&metrics_.ttft_worker_seconds, "tandem_ttft_part_seconds_sum{part=\"worker\"}"},
      {&metrics_.itl_seconds, "tandem_itl_seconds_sum"},
      {&metrics_.e2e_seconds, "tandem_e2e_seconds_sum"},
      {&metrics_.prompt_tokens_a_request, "tandem_request_prompt_tokens_sum"},
      {&metrics_.generated_tokens_a_request, "tandem_request_generated_tokens_sum"},
  };
  int next = 0;
  for (const auto& [counter, name] : counters) counter->Increment(++next);
  for (const auto& [gauge, name] : gauges) gauge->Set(++next);
  for (const auto& [histogram, name] : histograms) histogram->Observe(++next);
  int expected = 0;
  for (const auto& [counter, name] : counters) EXPECT_EQ(Shown(name), ++expected) << name;
  for (const auto& [gauge, name] : gauges) EXPECT_EQ(Shown(name), ++expected) << name;
  for (const auto& [histogram, name] : histograms) EXPECT_EQ(Shown(name), ++expected) << name;
}

TEST_F(RouterMetricsTest, RefusalsAreShownBeforeTheFirstOne) {
  const auto shown = [this](const std::string& code) {
    return Shown("tandem_refused_calls_total{code=\"" + code + "\"}");
  };
  for (const char* code : {"DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND",
                           "RESOURCE_EXHAUSTED", "UNAVAILABLE"}) {
    EXPECT_EQ(shown(code), 0) << code;
  }
  metrics_.RefusedCalls("NOT_FOUND").Increment();
  EXPECT_EQ(shown("NOT_FOUND"), 1);
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
