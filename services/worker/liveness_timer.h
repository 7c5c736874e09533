// The thread that no forward pass can block: heartbeats, renewals of leases and reservations, and
// the health service.

#ifndef TANDEM_SERVICES_WORKER_LIVENESS_TIMER_H_
#define TANDEM_SERVICES_WORKER_LIVENESS_TIMER_H_

#include <grpcpp/health_check_service_interface.h>

#include <thread>

#include "runtime/base/mutex.h"
#include "runtime/protocol/lease_keeper.h"
#include "runtime/protocol/times.h"
#include "services/worker/decode_sessions.h"
#include "services/worker/engine_loop.h"
#include "services/worker/prefill_peers.h"
#include "services/worker/watch_hub.h"

namespace tandem {

// grpc.health.v1: "" and "tandem.v1.Worker" serve while the engine makes progress and accepts
// attempts (readiness); "liveness" serves while the process runs.
class LivenessTimer {
 public:
  // Everything outlives the timer. The thread starts here.
  LivenessTimer(const LivenessTimes& times, const EngineLoop* engine, const LeaseKeeper* leases,
                PrefillPeers* prefills, DecodeSessions* decodes, WatchHub* watches,
                grpc::HealthCheckServiceInterface* health);
  ~LivenessTimer();

 private:
  void Run();
  void Beat();
  void RenewLeases();

  const LivenessTimes times_;
  const EngineLoop* const engine_;
  const LeaseKeeper* const leases_;
  PrefillPeers* const prefills_;
  DecodeSessions* const decodes_;
  WatchHub* const watches_;
  grpc::HealthCheckServiceInterface* const health_;
  bool ready_ = true;  // As last told to the health service. Timer thread.
  Mutex mu_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_LIVENESS_TIMER_H_
