// The thread that no forward pass can block: heartbeats, renewals of leases and reservations,
// whether the worker is ready, and whether it hangs.

#ifndef TANDEM_SERVICES_WORKER_LIVENESS_TIMER_H_
#define TANDEM_SERVICES_WORKER_LIVENESS_TIMER_H_

#include <atomic>
#include <functional>
#include <thread>

#include "runtime/base/mutex.h"
#include "runtime/protocol/times.h"
#include "services/worker/decode_sessions.h"
#include "services/worker/engine_loop.h"
#include "services/worker/hang_watch.h"
#include "services/worker/prefill_peers.h"
#include "services/worker/watch_hub.h"
#include "services/worker/watched_copier.h"

namespace tandem {

// Everything outlives the timer.
struct LivenessParts {
  const EngineLoop* engine = nullptr;
  WatchedCopier* copier = nullptr;  // Null where the KV pool is the host's.
  PrefillPeers* prefills = nullptr;
  DecodeSessions* decodes = nullptr;
  WatchHub* watches = nullptr;
  // Kept up to date: the engine makes progress and accepts attempts.
  std::atomic<bool>* ready = nullptr;
  // The engine, or a copy, has no end; called once, and again after it has gone on. May be empty.
  std::function<void()> on_hung;
};

class LivenessTimer {
 public:
  // The thread starts here.
  LivenessTimer(const LivenessTimes& times, const LivenessParts& parts);
  ~LivenessTimer();

  // The engine drains, and a heartbeat that says so has been given to every Watch; else it will be
  // soon. Any thread.
  bool HasToldOfDrain() EXCLUDES(mu_);

 private:
  void Run();
  void Beat();
  void Look(const WorkerLoad& load);
  void RenewLeases();

  const LivenessTimes times_;
  const LivenessParts parts_;
  // What the thread saw.
  HangWatch engine_, copies_;
  bool hung_ = false;
  Mutex mu_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool asked_ GUARDED_BY(mu_) = false;  // For a heartbeat at once.
  std::atomic<bool> told_of_drain_{false};
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_LIVENESS_TIMER_H_
