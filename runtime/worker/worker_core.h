// What a worker is besides its sockets and threads: an engine, what is asked of it, what it says to
// each router in one batch, and what it keeps alive at its peers. The process and the simulator are
// shells around it.

#ifndef TANDEM_RUNTIME_WORKER_WORKER_CORE_H_
#define TANDEM_RUNTIME_WORKER_WORKER_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/outbox.h"
#include "runtime/protocol/lease_keeper.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/worker/engine_command.h"

namespace tandem {

// A worker's sessions with routers.
class RouterLinks {
 public:
  virtual ~RouterLinks() = default;

  virtual std::vector<SessionId> Routers() const = 0;
  // One that has gone gets nothing.
  virtual void SendBatch(SessionId router, const StepBatch& batch) = 0;
  // Until these have left the process, or long enough.
  virtual void WaitUntilSent(std::span<const SessionId> routers) = 0;

  // ---- Who listens hears it first ----
  virtual void OnEvent(SessionId router, const RouterEvent& event) = 0;
  virtual void OnChunks(std::span<const ChunkNotice> chunks) = 0;
  virtual void OnPromptComputed(int64_t arrived_us, int64_t begun_us) = 0;  // As Outbox.
};

// What a timer thread sends now, so that peers wait while this worker is busy: one message each.
struct Renewals {
  std::vector<std::pair<WorkerId, Renew>> leases;         // To prefill workers that are dialled.
  std::vector<std::pair<SessionId, Renew>> reservations;  // To decode workers.
};

class WorkerCore final : private Outbox {
 public:
  // Everything outlives the core. Arguments and errors of Engine::Create.
  static absl::StatusOr<std::unique_ptr<WorkerCore>> Create(
      const EngineOptions& options, Executor* executor, RouterLinks* routers, PeerOutbox* peers,
      KvReceiver* receiver, LeaseKeeper* leases, TokenMasker* masker = nullptr);

  // ---- Engine thread ----
  // All but WatchOpened, which is the shell's.
  void Apply(const EngineCommand& command, int64_t now_us);
  // What these say stays here until Publish.
  Engine::StepResult Step(int64_t now_us) { return engine_->Step(now_us); }
  Engine::StepResult BeginStep(int64_t now_us) { return engine_->BeginStep(now_us); }
  Engine::StepResult FinishStep(int64_t now_us) { return engine_->FinishStep(now_us); }
  void Publish();

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }

  // ---- Any thread ----
  // An engine that hangs holds nobody up for longer than the reservation lasts.
  Renewals RenewalsDue(int64_t since_progress_us) const;

 private:
  WorkerCore(const EngineOptions& options, RouterLinks* routers, LeaseKeeper* leases);
  void ToRouter(SessionId router, RouterEvent event) override;
  void BeginChunks(std::span<const ChunkNotice> chunks) override;
  void OnPromptComputed(int64_t arrived_us, int64_t begun_us) override;

  const uint64_t incarnation_;
  const int64_t engine_stalled_us_;
  RouterLinks* const routers_;
  const LeaseKeeper* const leases_;
  std::unique_ptr<Engine> engine_;
  std::map<SessionId, StepBatch> batches_;  // What has not left.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_WORKER_WORKER_CORE_H_
