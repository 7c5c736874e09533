// The engine thread: drains commands, steps, publishes. It alone touches the engine.

#ifndef TANDEM_SERVICES_WORKER_ENGINE_LOOP_H_
#define TANDEM_SERVICES_WORKER_ENGINE_LOOP_H_

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/engine/engine.h"
#include "services/worker/decode_sessions.h"
#include "services/worker/engine_command.h"
#include "services/worker/prefill_peers.h"
#include "services/worker/router_sessions.h"
#include "services/worker/watch_hub.h"
#include "services/worker/worker_metrics.h"

namespace tandem {

// Everything outlives the loop.
struct EngineLoopParts {
  CommandQueue* commands = nullptr;
  Executor* executor = nullptr;
  KvReceiver* receiver = nullptr;
  LeaseKeeper* leases = nullptr;
  RouterSessions* routers = nullptr;
  DecodeSessions* decodes = nullptr;
  PrefillPeers* prefills = nullptr;
  WatchHub* watches = nullptr;
  WorkerMetrics* metrics = nullptr;
};

class EngineLoop final : public Outbox {
 public:
  // Errors of Engine::Create. The thread starts with Start().
  static absl::StatusOr<std::unique_ptr<EngineLoop>> Create(const EngineOptions& options,
                                                            const EngineLoopParts& parts);
  ~EngineLoop() override;

  void Start();
  // After this no command is handled any more.
  void Stop();

  // ---- Any thread ----

  // As of the last step, with since_progress_us as of now.
  WorkerLoad Load() const EXCLUDES(mu_);
  bool draining() const { return draining_.load(); }
  bool drained() const { return drained_.load(); }

  // ---- Outbox: engine thread ----
  void ToRouter(SessionId router, RouterEvent event) override;
  void BeginChunks(std::span<const ChunkNotice> chunks) override;
  void ToPrefill(const PrefillPeer& prefill, DecodeToPrefill message) override;
  void ToDecode(SessionId decode, PrefillToDecode message) override;
  void SendFrame(SessionId decode, const FrameHeader& header, BlockId block,
                 uint64_t send_id) override;
  void WithdrawFrame(SessionId decode, uint64_t send_id) override;
  void OnPromptComputed(int64_t arrived_us, int64_t begun_us) override;
  void OnTransferred(int64_t took_us) override;
  void OnPeerPaused(const WorkerId& prefill, PauseReason reason) override;

 private:
  explicit EngineLoop(const EngineLoopParts& parts, uint64_t incarnation)
      : parts_(parts), incarnation_(incarnation) {}
  void Run();
  [[noreturn]] void Replace(std::string_view why);
  void Apply(const EngineCommand& command);
  void Publish();
  void PublishToRouters();
  void StampProgress() const { progress_us_ = clock_.NowUs(); }

  const EngineLoopParts parts_;
  const uint64_t incarnation_;
  const SteadyClock clock_;
  std::unique_ptr<Engine> engine_;

  // Engine thread.
  std::map<SessionId, StepBatch> batches_;  // Of the step that runs.

  // By the engine thread between steps; in a step by whoever sees that work was done.
  mutable std::atomic<int64_t> progress_us_{0};
  mutable std::atomic<uint64_t> work_seen_{0};
  std::atomic<bool> busy_{false};  // Not waiting for commands.
  std::atomic<bool> draining_{false};
  std::atomic<bool> drained_{false};
  std::atomic<bool> stopping_{false};
  mutable Mutex mu_;
  WorkerLoad load_ GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_ENGINE_LOOP_H_
