// What the transport's threads report: counted, and posted to the engine.

#ifndef TANDEM_SERVICES_WORKER_TRANSPORT_EVENTS_H_
#define TANDEM_SERVICES_WORKER_TRANSPORT_EVENTS_H_

#include "runtime/base/log.h"
#include "runtime/transport/kv_transport.h"
#include "services/worker/command_queue.h"
#include "services/worker/worker_metrics.h"

namespace tandem {

class TransportEvents final : public KvTransport::Listener {
 public:
  // Both outlive this.
  TransportEvents(CommandQueue* commands, WorkerMetrics* metrics)
      : commands_(commands), metrics_(metrics) {}

  void OnFrameSent(uint64_t send_id, bool ok) override {
    commands_->PushAlways(FrameSent{send_id, ok});
  }
  void OnFrameReceived(const ReceivedFrame& frame, int64_t payload_bytes) override {
    metrics_->OnFrame(frame.outcome, payload_bytes);
    commands_->PushAlways(FrameArrived{frame});
  }
  void OnLinkProbed(const LinkReport& report) override {
    metrics_->OnLinkProbed(report);
    LogInfo("KV link open", {{"peer", report.peer},
                             {"path", report.path},
                             {"gigabytes_per_second", report.bytes_per_second * 1e-9}});
  }
  void OnLinkClosed(const std::string& peer, const std::string& path) override {
    metrics_->OnLinkClosed(peer, path);
  }

 private:
  CommandQueue* const commands_;
  WorkerMetrics* const metrics_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_TRANSPORT_EVENTS_H_
