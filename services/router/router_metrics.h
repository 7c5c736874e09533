// The router's own metrics, made once, updated from any thread.

#ifndef TANDEM_SERVICES_ROUTER_ROUTER_METRICS_H_
#define TANDEM_SERVICES_ROUTER_ROUTER_METRICS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/protocol/router_messages.h"
#include "runtime/request/request_counters.h"
#include "services/server/metrics_registry.h"

namespace tandem {

// What tandem_workers says of a worker.
enum class WorkerState : uint8_t { kHealthy, kDraining, kFailing, kLost };
inline constexpr size_t kNumWorkerStates = 4;

struct WorkerCounts {
  std::array<std::array<int, kNumWorkerStates>, kNumWorkerRoles> counts{};

  int& of(WorkerRole role, WorkerState state) {
    return counts[static_cast<size_t>(role)][static_cast<size_t>(state)];
  }
};

class RouterMetrics {
 public:
  explicit RouterMetrics(MetricsRegistry* registry);  // Outlives this.

  prometheus::Histogram& ttft_seconds;       // Call arrived to first token: the sum of these parts.
  prometheus::Histogram& ttft_text_seconds;  // Parsed, tokenized, taken by the router's thread.
  prometheus::Histogram& ttft_queue_seconds;       // Sent to a worker.
  prometheus::Histogram& ttft_worker_seconds;      // First token.
  prometheus::Histogram& itl_seconds;              // Between two tokens of one choice.
  prometheus::Histogram& prompt_tokens_a_request;  // Finished requests only, as the next two.
  prometheus::Histogram& generated_tokens_a_request;
  prometheus::Histogram& e2e_seconds;  // Call accepted to the last token; finished requests only.
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& cached_prompt_tokens;
  prometheus::Counter& generated_tokens;
  prometheus::Gauge& requests_in_flight;  // Accepted and not finished.
  prometheus::Gauge& requests_waiting;    // In flight without a worker.
  prometheus::Counter& slow_readers;
  prometheus::Gauge& http_connections;
  prometheus::Gauge& workers_unseen;

  // Copies the owner's counters into tandem_requests_total, tandem_stream_resumes_total and their
  // like. Router thread.
  void Publish(const RequestCounters& counters);
  void Publish(const WorkerCounts& counts);
  prometheus::Counter& RefusedCalls(const std::string& code);

 private:
  MetricsRegistry* const registry_;
  std::array<prometheus::Counter*, kNumResumeReasons> resumes_{};
  std::array<prometheus::Counter*, kNumRequestOutcomes> outcomes_{};
  std::array<std::array<prometheus::Counter*, 2>, kNumRouteReasons> attempts_{};
  std::array<std::array<prometheus::Gauge*, kNumWorkerStates>, kNumWorkerRoles> workers_{};
  prometheus::Counter* refusals_;
  prometheus::Counter* stale_events_;
  prometheus::Counter* protocol_errors_;
  prometheus::Counter* determinism_violations_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_ROUTER_METRICS_H_
