#include "services/router/router_metrics.h"

namespace tandem {
namespace {

// Where peers' dashboards look, with a low end for small models.
const std::vector<double>& TtftBuckets() {
  static const auto* const kBuckets =
      new std::vector<double>{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                              1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
  return *kBuckets;
}

prometheus::Histogram& TtftPart(MetricsRegistry* registry, const char* part) {
  return registry->Histogram(
      "tandem_ttft_part_seconds",
      "What tandem_ttft_seconds consists of: text (parse, template, tokenize), queue (until it was "
      "sent to a worker), worker (until its first token).",
      TtftBuckets(), {{"part", part}});
}

const std::vector<double>& ItlBuckets() {
  static const auto* const kBuckets =
      new std::vector<double>{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                              0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
  return *kBuckets;
}

const std::vector<double>& E2eBuckets() {
  static const auto* const kBuckets =
      new std::vector<double>{0.01,  0.02,  0.04,  0.08,  0.16, 0.32, 0.64, 1.28, 2.56, 5.12,
                              10.24, 20.48, 40.96, 81.92, 120,  240,  480,  960,  1920, 7680};
  return *kBuckets;
}

const std::vector<double>& TokenBuckets() {
  static const auto* const kBuckets = new std::vector<double>{
      1,    2,     5,      10,     20,     50,      100,     200,     500,      1000,
      2000, 5'000, 10'000, 20'000, 50'000, 100'000, 200'000, 500'000, 1'000'000};
  return *kBuckets;
}

// By WorkerState.
constexpr const char* kWorkerStates[kNumWorkerStates] = {"healthy", "draining", "failing", "lost"};

void RaiseTo(prometheus::Counter* counter, uint64_t value) {
  const double more = static_cast<double>(value) - counter->Value();
  if (more > 0) counter->Increment(more);
}

}  // namespace

RouterMetrics::RouterMetrics(MetricsRegistry* registry)
    : ttft_seconds(registry->Histogram("tandem_ttft_seconds", "Request arrival to first token.",
                                       TtftBuckets())),
      ttft_text_seconds(TtftPart(registry, "text")),
      ttft_queue_seconds(TtftPart(registry, "queue")),
      ttft_worker_seconds(TtftPart(registry, "worker")),
      itl_seconds(registry->Histogram("tandem_itl_seconds",
                                      "Gap between two tokens of one sequence.", ItlBuckets())),
      prompt_tokens_a_request(registry->Histogram(
          "tandem_request_prompt_tokens", "Prompt tokens of a finished request.", TokenBuckets())),
      generated_tokens_a_request(registry->Histogram("tandem_request_generated_tokens",
                                                     "Tokens of all choices of a finished request.",
                                                     TokenBuckets())),
      e2e_seconds(registry->Histogram(
          "tandem_e2e_seconds", "Request arrival to its end, of finished requests.", E2eBuckets())),
      prompt_tokens(registry->Counter("tandem_prompt_tokens_total",
                                      "Prompt tokens of requests that got a first token.")),
      cached_prompt_tokens(registry->Counter("tandem_cached_prompt_tokens_total",
                                             "Of these, served from a prefix cache.")),
      generated_tokens(
          registry->Counter("tandem_generated_tokens_total", "Tokens delivered to clients.")),
      requests_in_flight(
          registry->Gauge("tandem_requests_in_flight", "Requests accepted and not finished.")),
      requests_waiting(registry->Gauge("tandem_queue_depth",
                                       "Streams waiting at the router for a worker: a request, "
                                       "or a choice of it once they differ.")),
      slow_readers(registry->Counter("tandem_slow_readers_total",
                                     "Requests cancelled because their client did not read.")),
      http_connections(registry->Gauge("tandem_http_connections", "Open HTTP connections.")),
      workers_unseen(registry->Gauge(
          "tandem_workers_unseen",
          "Addresses of --workers, or of the DNS name, at which no worker has registered yet: "
          "nobody knows its role, so it is in no state of tandem_workers.")),
      registry_(registry) {
  for (size_t i = 0; i < kNumResumeReasons; ++i) {
    resumes_[i] = &registry->Counter(
        "tandem_stream_resumes_total", "Streams that went on as another attempt.",
        {{"reason", std::string(ResumeReasonName(static_cast<ResumeReason>(i)))}});
  }
  for (size_t i = 0; i < kNumRequestOutcomes; ++i) {
    outcomes_[i] = &registry->Counter(
        "tandem_requests_total", "Requests that ended, by outcome.",
        {{"outcome", std::string(RequestOutcomeName(static_cast<RequestOutcome>(i)))}});
  }
  // So that they are seen before the first one.
  for (const char* code : {"DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND",
                           "RESOURCE_EXHAUSTED", "UNAVAILABLE"}) {
    RefusedCalls(code);
  }
  for (size_t role = 0; role < kNumWorkerRoles; ++role) {
    for (size_t state = 0; state < kNumWorkerStates; ++state) {
      workers_[role][state] = &registry->Gauge(
          "tandem_workers",
          "Workers of this router, by role and state: healthy, draining (and, for a minute, those "
          "that have left since), failing (a step failed, it rests), lost (silent, without "
          "progress or without a Watch, for as long as --workers or the DNS name has its address, "
          "and else for a minute).",
          {{"role", std::string(WorkerRoleName(static_cast<WorkerRole>(role)))},
           {"state", kWorkerStates[state]}});
    }
  }
  for (size_t i = 0; i < kNumRouteReasons; ++i) {
    for (const bool prefill : {false, true}) {
      attempts_[i][prefill ? 1 : 0] = &registry->Counter(
          "tandem_attempts_total",
          "Attempts sent to workers, those that they refused too, by what decided on the worker: "
          "only (no other could take it), prefix (it knows a longer one than another), load; and "
          "whether a prefill worker was named.",
          {{"reason", std::string(RouteReasonName(static_cast<RouteReason>(i)))},
           {"prefill", prefill ? "yes" : "no"}});
    }
  }
  refusals_ = &registry->Counter("tandem_worker_refusals_total", "Attempts that workers refused.");
  stale_events_ = &registry->Counter("tandem_stale_events_total",
                                     "Workers' events of earlier attempts or incarnations.");
  protocol_errors_ =
      &registry->Counter("tandem_protocol_errors_total", "Workers' events that must not be.");
  determinism_violations_ = &registry->Counter("tandem_determinism_violations_total",
                                               "Positions computed twice with different results.");
}

void RouterMetrics::Publish(const RequestCounters& counters) {
  for (size_t i = 0; i < kNumResumeReasons; ++i) RaiseTo(resumes_[i], counters.resumes[i]);
  for (size_t i = 0; i < kNumRequestOutcomes; ++i) RaiseTo(outcomes_[i], counters.outcomes[i]);
  for (size_t i = 0; i < kNumRouteReasons; ++i) {
    for (size_t j = 0; j < 2; ++j) RaiseTo(attempts_[i][j], counters.routes[i][j]);
  }
  RaiseTo(refusals_, counters.refusals);
  RaiseTo(stale_events_, counters.stale_events);
  RaiseTo(protocol_errors_, counters.protocol_errors);
  RaiseTo(determinism_violations_, counters.determinism_violations);
}

void RouterMetrics::Publish(const WorkerCounts& counts) {
  for (size_t role = 0; role < kNumWorkerRoles; ++role) {
    for (size_t state = 0; state < kNumWorkerStates; ++state) {
      workers_[role][state]->Set(counts.counts[role][state]);
    }
  }
}

prometheus::Counter& RouterMetrics::RefusedCalls(const std::string& code) {
  return registry_->Counter("tandem_refused_calls_total",
                            "Calls refused before they became requests, by code.",
                            {{"code", code}});
}

}  // namespace tandem
