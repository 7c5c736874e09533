#include "services/worker/liveness_timer.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"

namespace tandem {

LivenessTimer::LivenessTimer(const LivenessTimes& times, const LivenessParts& parts)
    : times_(times), parts_(parts), engine_(times), copies_(times) {
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
  int64_t renew_us = clock.NowUs();
  int64_t beat_us = renew_us + times_.heartbeat_us;
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
  const Heartbeat heartbeat{.load = parts_.engine->Load(), .draining = parts_.engine->draining()};
  parts_.watches->PublishHeartbeat(heartbeat);
  if (heartbeat.draining) told_of_drain_ = true;
  Look(heartbeat.load);
  const bool ready =
      !heartbeat.draining && heartbeat.load.since_progress_us < times_.engine_stalled_us;
  if (parts_.ready->exchange(ready) == ready) return;
  if (heartbeat.draining) return LogInfo("not ready: it drains");
  LogWarning(ready ? "ready again" : "not ready",
             {{"since_progress_us", heartbeat.load.since_progress_us}});
}

// A device that waits for ever can only be left: the end of the process gives it back.
void LivenessTimer::Look(const WorkerLoad& load) {
  const auto seconds = [](int64_t us) { return static_cast<double>(us) * 1e-6; };
  const bool step_hangs = engine_.Look(load.since_progress_us >= times_.engine_stalled_us);
  const bool copy_hangs = copies_.Look(parts_.copier != nullptr && parts_.copier->Stands());
  if (std::exchange(hung_, step_hangs || copy_hangs) || !hung_) return;
  if (step_hangs) {
    LogError("a step has no end; this worker exits to be replaced",
             {{"seconds", seconds(engine_.stood_us())},
              {"tokens", parts_.engine->step_tokens()},
              {"sequences", load.running_sequences}});
  } else {
    LogError("a copy of KV blocks has no end; this worker exits to be replaced",
             {{"seconds", seconds(copies_.stood_us())},
              {"under_way", parts_.copier->under_way()},
              {"copied_before", parts_.copier->done()}});
  }
  if (parts_.on_hung) parts_.on_hung();
}

void LivenessTimer::RenewLeases() {
  const Renewals due = parts_.engine->RenewalsDue();
  for (const auto& [worker, renew] : due.leases) parts_.prefills->Renew(worker, renew);
  for (const auto& [session, renew] : due.reservations) parts_.decodes->Send(session, renew);
}

}  // namespace tandem
