// The worker's metrics. Names and meanings: docs/metrics.md.

#ifndef TANDEM_SERVICES_WORKER_WORKER_METRICS_H_
#define TANDEM_SERVICES_WORKER_WORKER_METRICS_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/api/backend.h"
#include "runtime/base/mutex.h"
#include "runtime/engine/engine.h"
#include "runtime/protocol/kv_receiver.h"
#include "runtime/protocol/peer_pauses.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/transport/kv_transport.h"
#include "services/server/metrics_registry.h"

namespace tandem {

// Any thread.
class WorkerMetrics {
 public:
  // `registry` outlives this. `backend` is asked here alone; null: its labels are empty.
  WorkerMetrics(const WorkerRegistration& self, const Backend* backend, MetricsRegistry* registry);

  // `seconds`: of the step that was finished.
  void OnStep(double seconds, const Engine::StepResult& step);
  void OnLoad(const WorkerLoad& load);
  void OnDeviceMemory(const DeviceMemory& memory);
  void OnFailedCopy() { failed_copies_.Increment(); }
  void OnFailedLook() { failed_looks_.Increment(); }  // At the device's memory.
  void OnSubmit(int32_t prompt_tokens) { prompt_tokens_.Increment(prompt_tokens); }
  void OnPrompt(const PromptEvent& prompt) {
    (prompt.by_prefill ? peer_hit_tokens_ : own_hit_tokens_).Increment(prompt.cached_tokens);
  }
  void OnPromptComputed(double waited_seconds, double computed_seconds);
  void OnToken() { generated_tokens_.Increment(); }
  void OnTransferSeconds(double seconds) { transfer_seconds_.Observe(seconds); }
  // The receiver counts, once per verified frame, so that sums over workers are the bytes moved.
  void OnFrame(FrameOutcome outcome, int64_t payload_bytes);
  // tandem_kv_link_bytes_per_second of a link is there while the link is.
  void OnLinkProbed(const LinkReport& report) EXCLUDES(mu_);
  void OnLinkClosed(const std::string& peer, const std::string& path) EXCLUDES(mu_);
  void OnPeerPaused(PauseReason reason);

 private:
  const std::string transport_;
  MetricsRegistry* const registry_;
  prometheus::Histogram& prompt_wait_seconds_;
  prometheus::Histogram& prompt_compute_seconds_;
  prometheus::Histogram& step_seconds_;
  prometheus::Histogram& batch_sequences_;
  prometheus::Gauge& running_;
  prometheus::Gauge& waiting_;
  prometheus::Gauge& waiting_prompt_tokens_;
  prometheus::Counter& preemptions_;
  prometheus::Counter& failed_steps_;
  prometheus::Counter& failed_copies_;
  prometheus::Counter& failed_looks_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& generated_tokens_;
  prometheus::Counter& own_hit_tokens_;
  prometheus::Counter& peer_hit_tokens_;
  prometheus::Counter& transfer_bytes_;
  prometheus::Histogram& transfer_seconds_;
  prometheus::Gauge& free_blocks_;
  prometheus::Gauge& held_blocks_;
  prometheus::Gauge& cached_blocks_;
  prometheus::Gauge& in_flight_blocks_;
  prometheus::Gauge& quarantined_blocks_;
  prometheus::Counter& verified_frames_;
  prometheus::Counter& corrupt_frames_;
  prometheus::Counter& failed_frames_;
  prometheus::Counter& orphaned_frames_;
  std::vector<std::reference_wrapper<prometheus::Counter>> peer_pauses_;  // By PauseReason.
  // For the endpoint pickers of gateways.
  prometheus::Gauge& requests_running_;
  prometheus::Gauge& requests_waiting_;
  prometheus::Gauge& kv_usage_;

  // A new link to a peer may open before its last one has closed.
  struct LinkGauge {
    prometheus::Gauge* gauge = nullptr;
    int num_links = 0;
  };
  Mutex mu_;
  std::map<std::pair<std::string, std::string>, LinkGauge> links_ GUARDED_BY(mu_);  // Peer, path.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WORKER_METRICS_H_
