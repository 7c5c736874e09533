// The engine thread: drains commands, steps, publishes. It alone touches the engine.

#ifndef TANDEM_SERVICES_WORKER_ENGINE_LOOP_H_
#define TANDEM_SERVICES_WORKER_ENGINE_LOOP_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/worker/worker_core.h"
#include "services/worker/command_queue.h"
#include "services/worker/decode_sessions.h"
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
  // Whose memory is measured at the start and, between two steps, each time that so long has gone
  // by: others may take of it at any time, a step hardly ever does. Null: none is.
  const Backend* backend = nullptr;
  int64_t measure_memory_us = 10'000'000;       // Tests have others.
  const class WatchedCopier* copier = nullptr;  // Null: the pool is the host's.
  // Called once: the engine is broken, or its device is lost: a copy or a look at its memory says
  // so, or kMaxFailedSteps of one kind fail in a row. Not empty. Engine thread.
  std::function<void()> on_broken;
};

class EngineLoop final : private RouterLinks, private PeerOutbox {
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
  bool is_broken() const { return broken_.load(); }  // on_broken was called.
  int32_t step_tokens() const { return core_->engine().step_tokens(); }
  // By which peers wait for this worker.
  Renewals RenewalsDue() const { return core_->RenewalsDue(Load().since_progress_us); }

 private:
  explicit EngineLoop(const EngineLoopParts& parts) : parts_(parts) {}
  void Run();
  [[noreturn]] void EndForStuckBlocks();
  int64_t TakeDuration(int64_t begin_us, int64_t end_us, const Engine::StepResult& result);
  void Apply(const EngineCommand& command);
  void Publish();
  void MeasureMemory();
  // No step succeeds any more, unless it is OK.
  void Break(const absl::Status& why);
  void StampProgress() const { progress_us_ = clock_.NowUs(); }

  // RouterLinks: engine thread.
  std::vector<SessionId> Routers() const override { return parts_.routers->ids(); }
  void SendBatch(SessionId router, const StepBatch& batch) override;
  void WaitUntilSent(std::span<const SessionId> routers) override;
  void OnEvent(SessionId router, const RouterEvent& event) override;
  void OnChunks(std::span<const ChunkNotice>) override {}
  void OnPromptComputed(int64_t arrived_us, int64_t begun_us) override;

  // PeerOutbox: engine thread.
  void ToPrefill(const PrefillPeer& prefill, DecodeToPrefill message) override;
  void ToDecode(SessionId decode, PrefillToDecode message) override;
  void SendFrame(SessionId decode, const FrameHeader& header, BlockId block,
                 uint64_t send_id) override;
  void WithdrawFrame(SessionId decode, uint64_t send_id) override;
  void OnTransferred(int64_t took_us) override;
  void OnPeerPaused(const WorkerId& prefill, PauseReason reason,
                    const std::string& detail) override;

  const EngineLoopParts parts_;
  const SteadyClock clock_;
  std::unique_ptr<WorkerCore> core_;
  std::deque<int64_t> begun_us_;  // When steps began that are not finished.
  int64_t finished_us_ = 0;       // When the last one was.
  int64_t measure_at_us_ = 0;     // The device's memory, the next time.
  int32_t failed_looks_ = 0;      // In a row, at that memory.

  // By the engine thread between steps; in a step by whoever sees that work was done.
  mutable std::atomic<int64_t> progress_us_{0};
  mutable std::atomic<uint64_t> work_seen_{0};
  std::atomic<bool> busy_{false};                       // Not waiting for commands.
  std::atomic<bool> draining_{false}, drained_{false};  // As the engine says.
  std::atomic<bool> stopping_{false};
  std::atomic<bool> broken_{false};
  mutable Mutex mu_;
  WorkerLoad load_ GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_ENGINE_LOOP_H_
