// One worker's brain: sequences, block pool, prefix cache, scheduler and both sides of the KV
// transfer, as one state machine without threads, clocks or sockets. What serves traffic is also
// what the simulator runs.
//
// Continuous batching after Orca (Yu et al., OSDI 2022); chunked prefill that shares a batch with
// decodes after Sarathi-Serve (Agrawal et al., OSDI 2024); paged KV after PagedAttention (Kwon et
// al., SOSP 2023).
//
// Engine thread only, every method. `now_us` never goes back. Inputs may come late, twice or out of
// order: each is idempotent, and what belongs to an ended attempt changes nothing.

#ifndef TANDEM_RUNTIME_ENGINE_ENGINE_H_
#define TANDEM_RUNTIME_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/outbox.h"
#include "runtime/kv_cache/prefix_cache.h"
#include "runtime/protocol/kv_receiver.h"
#include "runtime/protocol/lease_keeper.h"
#include "runtime/protocol/times.h"

namespace tandem {

struct EngineOptions {
  WorkerId self;
  std::string model;          // As registered; a Submit for another is refused.
  int32_t block_tokens = 16;  // A multiple of kHashTokens.
  int32_t num_blocks = 0;
  int64_t block_bytes = 0;                       // Length of every KV frame's payload.
  int32_t max_sequences = 0;                     // In one batch.
  int32_t max_batched_tokens = 0;                // Token budget of one step.
  int32_t max_model_tokens = 0;                  // Prompt + output.
  int32_t max_waiting_attempts = 0;              // More are refused ResourceExhausted.
  int64_t vocab_size = SpecLimits().vocab_size;  // Token ids from it on are refused.
  bool prefix_caching = true;
  double max_quarantined_share = 0.5;  // Of the pool; see quarantine_is_stuck.
  // Of all prompts for one decode worker, with the transport at a time: more only once these have
  // left, however many were granted.
  int32_t max_frames_ahead = 1024;
  LivenessTimes times;
};

inline constexpr int32_t kMaxFailedSteps = 8;

// What the sender of a prompt is charged for it: kept until the prompt is admitted to a batch or
// has ended, and of one that is computed for another worker until its blocks are not needed any
// more.
using PromptCharge = std::shared_ptr<const void>;

class Engine {
 public:
  // Borrows everything; all outlive the engine. InvalidArgument if the options contradict each
  // other (the message names the numbers).
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        Executor* executor, Outbox* outbox,
                                                        KvReceiver* receiver, LeaseKeeper* leases);
  ~Engine();

  // ---- From routers ----
  void OnSubmit(SessionId router, const Submit& submit, int64_t now_us,
                PromptCharge charge = nullptr);
  void OnCancel(SessionId router, const Cancel& cancel, int64_t now_us);
  void OnRouterLost(SessionId router, int64_t now_us);  // Ends all its attempts.

  // ---- As the prefill side ----
  void OnDecodeMessage(SessionId decode, const DecodeToPrefill& message, int64_t now_us,
                       PromptCharge charge = nullptr);
  void OnDecodeLost(SessionId decode, int64_t now_us);
  void OnFrameSent(uint64_t send_id, bool ok, int64_t now_us);

  // ---- As the decode side ----
  void OnPrefillMessage(const WorkerId& prefill, const PrefillToDecode& message, int64_t now_us);
  void OnPrefillLost(const WorkerId& prefill, const absl::Status& why, int64_t now_us);
  // After KvReceiver::Finish on the transport's thread.
  void OnFrameReceived(const ReceivedFrame& frame, int64_t now_us);

  // Refuses new attempts (Unavailable); ends what runs with Unavailable so that routers continue it
  // elsewhere, except blocks a decode worker is still fetching, which are served to the end.
  void Drain(int64_t now_us);
  bool drained() const;

  // ---- One step: expire, grant, schedule, execute, publish ----
  struct StepResult {
    bool again = false;     // Call again at once.
    int32_t tokens = 0;     // Computed in this step.
    int32_t sequences = 0;  // In its batch; 0: it ran none.
    bool failed = false;    // As a whole: everybody in the batch has ended Aborted.
    int32_t preempted = 0;  // Sequences that gave their blocks back, to be recomputed.
    // Otherwise at the next input, or then (lease, deadline); INT64_MAX: at the next input.
    int64_t next_wakeup_us = 0;
  };
  StepResult Step(int64_t now_us);

  // For quarantine_us now more blocks than max_quarantined_share were in quarantine, or some were
  // and nothing could run: a transport does not come back, and the process is to be replaced.
  bool quarantine_is_stuck() const;
  // The last kMaxFailedSteps steps have failed: more than one poisonous request has attempts, so it
  // is this process that cannot compute, and it is to be replaced.
  bool steps_keep_failing() const;

  // ---- What a router wants to know ----
  WorkerLoad Load() const;            // since_progress_us is the caller's to fill.
  KvEvents TakeKvEvents();            // Since the last call.
  KvEvents SnapshotKvEvents() const;  // All that is cached; for a new Watch.

  // ---- For simulation and tests: O(blocks) ----
  // Internal, naming the block, if an invariant is broken: every reference has its sequence, every
  // pin its frame, and pool and prefix cache agree. Between two calls, not within one.
  absl::Status Audit() const;
  std::vector<NamedBlock> CachedBlocks() const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_ENGINE_H_
