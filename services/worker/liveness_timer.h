// The thread that no forward pass can block: heartbeats, renewals of leases and reservations, and
// whether the worker is ready.

#ifndef TANDEM_SERVICES_WORKER_LIVENESS_TIMER_H_
#define TANDEM_SERVICES_WORKER_LIVENESS_TIMER_H_

#include <atomic>
#include <thread>

#include "runtime/base/mutex.h"
#include "runtime/protocol/times.h"
#include "services/worker/decode_sessions.h"
#include "services/worker/engine_loop.h"
#include "services/worker/prefill_peers.h"
#include "services/worker/watch_hub.h"

namespace tandem {

class LivenessTimer {
 public:
  // Everything outlives the timer. The thread starts here. `ready` is kept up to date: the engine
  // makes progress and accepts attempts.
  LivenessTimer(const LivenessTimes& times, const EngineLoop* engine, PrefillPeers* prefills,
                DecodeSessions* decodes, WatchHub* watches, std::atomic<bool>* ready);
  ~LivenessTimer();

  // The engine drains, and a heartbeat that says so has been given to every Watch; else it will be
  // soon. Any thread.
  bool HasToldOfDrain() EXCLUDES(mu_);

 private:
  void Run();
  void Beat();
  void RenewLeases();

  const LivenessTimes times_;
  const EngineLoop* const engine_;
  PrefillPeers* const prefills_;
  DecodeSessions* const decodes_;
  WatchHub* const watches_;
  std::atomic<bool>* const ready_;
  Mutex mu_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool asked_ GUARDED_BY(mu_) = false;  // For a heartbeat at once.
  std::atomic<bool> told_of_drain_{false};
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_LIVENESS_TIMER_H_
