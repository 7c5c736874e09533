#include "services/worker/liveness_timer.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"

namespace tandem {

LivenessTimer::LivenessTimer(const LivenessTimes& times, const EngineLoop* engine,
                             PrefillPeers* prefills, DecodeSessions* decodes, WatchHub* watches,
                             std::atomic<bool>* ready)
    : times_(times),
      engine_(engine),
      prefills_(prefills),
      decodes_(decodes),
      watches_(watches),
      ready_(ready) {
  thread_ = std::thread([this] { Run(); });
}

LivenessTimer::~LivenessTimer() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.SignalAll();
  thread_.join();
}

bool LivenessTimer::HasToldOfDrain() {
  if (told_of_drain_) return true;
  MutexLock lock(&mu_);
  asked_ = true;
  wake_.SignalAll();
  return false;
}

void LivenessTimer::Run() {
  pthread_setname_np(pthread_self(), "liveness");
  const SteadyClock clock;
  int64_t beat_us = clock.NowUs();
  int64_t renew_us = beat_us;
  while (true) {
    const bool asked = [this] {
      MutexLock lock(&mu_);
      return std::exchange(asked_, false);
    }();
    const int64_t now_us = clock.NowUs();
    if (asked || now_us >= beat_us) {
      Beat();
      beat_us = now_us + times_.heartbeat_us;
    }
    if (now_us >= renew_us) {
      RenewLeases();
      renew_us = now_us + times_.renew_us;
    }
    MutexLock lock(&mu_);
    if (stopping_) return;
    const int64_t sleep_us = std::min(beat_us, renew_us) - clock.NowUs();
    if (sleep_us > 0 && !asked_) wake_.WaitFor(&mu_, std::chrono::microseconds(sleep_us));
    if (stopping_) return;
  }
}

void LivenessTimer::Beat() {
  const Heartbeat heartbeat{.load = engine_->Load(), .draining = engine_->draining()};
  watches_->PublishHeartbeat(heartbeat);
  if (heartbeat.draining) told_of_drain_ = true;
  const bool ready =
      !heartbeat.draining && heartbeat.load.since_progress_us < times_.engine_stalled_us;
  if (ready_->exchange(ready) == ready) return;
  if (heartbeat.draining) return LogInfo("not ready: it drains");
  LogWarning(ready ? "ready again" : "not ready",
             {{"since_progress_us", heartbeat.load.since_progress_us}});
}

void LivenessTimer::RenewLeases() {
  const Renewals due = engine_->RenewalsDue();
  for (const auto& [worker, renew] : due.leases) prefills_->Renew(worker, renew);
  for (const auto& [session, renew] : due.reservations) decodes_->Send(session, renew);
}

}  // namespace tandem
