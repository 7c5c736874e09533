// One worker's brain: sequences, block pool, prefix cache, scheduler and both sides of the KV
// transfer, as one state machine without threads, clocks or sockets. What serves traffic is also
// what the simulator runs. The work is split by topic: submit.cc, step.cc, publish.cc, endings.cc
// and transfers.cc do what they are named after.
//
// Continuous batching after Orca (Yu et al., OSDI 2022); chunked prefill that shares a batch with
// decodes after Sarathi-Serve (Agrawal et al., OSDI 2024); paged KV after PagedAttention (Kwon et
// al., SOSP 2023).
//
// Engine thread only, but for step_tokens(). `now_us` never goes back. Inputs may come late, twice
// or out of order: each is idempotent, and what belongs to an ended attempt changes nothing.

#ifndef TANDEM_RUNTIME_ENGINE_ENGINE_H_
#define TANDEM_RUNTIME_ENGINE_ENGINE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/expiry_queue.h"
#include "runtime/engine/attempt.h"
#include "runtime/engine/decode_side.h"
#include "runtime/engine/ended_keys.h"
#include "runtime/engine/engine_blocks.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/outbox.h"
#include "runtime/engine/prefill_side.h"
#include "runtime/engine/token_masker.h"
#include "runtime/kv_cache/kv_geometry.h"
#include "runtime/kv_cache/kv_window.h"
#include "runtime/kv_cache/prefix_cache.h"
#include "runtime/protocol/kv_receiver.h"
#include "runtime/protocol/lease_keeper.h"
#include "runtime/protocol/times.h"
#include "runtime/scheduler/scheduler.h"

namespace tandem {

struct EngineOptions {
  WorkerId self;
  std::string model;  // As registered; a Submit for another is refused.
  KvGeometry kv;
  int64_t window = 0;                            // KvWindow::tokens of the model.
  int32_t max_sequences = 0;                     // In one batch.
  int32_t max_batched_tokens = 0;                // Token budget of one step.
  int32_t max_model_tokens = 0;                  // Prompt + output.
  int32_t max_waiting_attempts = 0;              // More are refused ResourceExhausted.
  int64_t vocab_size = SpecLimits().vocab_size;  // Token ids from it on are refused.
  bool prefix_caching = true;
  double max_quarantined_share = 0.5;  // A share of the pool; see quarantine_is_stuck.
  // So many frames for one decode worker, of all its prompts, are with the transport at a time:
  // more only once these have left, however many were granted.
  int32_t max_frames_ahead = 1024;
  LivenessTimes times;

  // Blocks that a sequence of so many tokens holds at a time.
  int64_t MostBlocks(int64_t num_tokens) const {
    return KvWindow{.tokens = window, .block_tokens = kv.block_tokens}.MostBlocks(
        num_tokens, max_batched_tokens);
  }
};

// In a row: then the device is lost. services/worker holds copies and looks at memory to it, too.
inline constexpr int32_t kMaxFailedSteps = 8;

class Engine final : private DecodeHost, private PrefillHost {
 public:
  // Borrows everything; all outlive the engine. Without a `masker` no request has a mask.
  // InvalidArgument if the options contradict each other (the message names the numbers).
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        Executor* executor, Outbox* outbox,
                                                        PeerOutbox* peers, KvReceiver* receiver,
                                                        LeaseKeeper* leases,
                                                        TokenMasker* masker = nullptr);
  ~Engine() override;

  // ---- From routers ----
  void OnSubmit(SessionId router, const Submit& submit, int64_t now_us,
                CommandCharge charge = nullptr);
  void OnCancel(SessionId router, const Cancel& cancel, int64_t now_us);
  void OnRouterLost(SessionId router, int64_t now_us);  // Ends all its attempts.

  // ---- As the prefill side ----
  void OnDecodeMessage(SessionId decode, const DecodeToPrefill& message, int64_t now_us,
                       CommandCharge charge = nullptr);
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
  bool draining() const { return draining_; }
  bool drained() const;

  // ---- One step: expire, grant, schedule, begin; then finish, publish ----
  struct StepResult {
    bool again = false;              // Call again at once.
    int32_t tokens = 0;              // What the step has that was begun.
    int32_t sequences = 0;           // In its batch; 0: none was begun.
    int32_t finished_sequences = 0;  // In that of the step that was finished; 0: none was.
    int32_t preempted = 0;           // Sequences that gave their blocks back, to be recomputed.
    // Otherwise at the next input, or then (lease, deadline); INT64_MAX: at the next input.
    int64_t next_wakeup_us = 0;
    // Why the step that was finished failed as a whole, or a block of it for a peer cannot be read:
    // its sequences are Aborted.
    absl::Status failure;

    bool failed() const { return !failure.ok(); }
  };
  // Begins one, if it may, and finishes the oldest, unless yet another may be begun before: an
  // executor that overlaps steps computes one while the engine does everything else, inputs
  // included. What the result says of a batch is of the step that was begun.
  StepResult Step(int64_t now_us);

  // The halves of Step, for a loop that knows when a step is over.
  bool may_begin_step() const {
    return steps_begun() == 0 || (overlaps_steps_ && steps_begun() < kMaxStepsBegun &&
                                  !scheduler_.preemption_wanted() && scheduler_.num_alone() == 0);
  }
  StepResult BeginStep(int64_t now_us);   // None, if the result has no sequences.
  StepResult FinishStep(int64_t now_us);  // The oldest, and there is one.
  int32_t steps_begun() const { return static_cast<int32_t>(begun_ - finished_); }

  // For quarantine_us now more blocks than max_quarantined_share were in quarantine, or some were
  // and nothing could run: a transport does not come back, and the process is to be replaced.
  bool quarantine_is_stuck() const;
  // No step succeeds any more, and the process is to be replaced: its device is lost, as the last
  // step said; or the last kMaxFailedSteps steps have failed, not counting those begun before it
  // was known that the one before had: more than one poisonous request has attempts.
  bool is_broken() const { return failed_steps_ >= kMaxFailedSteps; }

  // Any thread. The tokens of the oldest step that is not finished, for who finds that it has no
  // end.
  int32_t step_tokens() const { return step_tokens_.load(std::memory_order_relaxed); }

  // ---- What a router wants to know ----
  WorkerLoad Load() const;  // since_progress_us is the caller's to fill.
  // Since the last call.
  KvEvents TakeKvEvents() { return blocks_.TakeEvents(); }
  // All that is cached; for a new Watch.
  KvEvents SnapshotKvEvents() const { return blocks_.Snapshot(); }

  // ---- For simulation and tests: O(blocks) ----
  // Internal, naming the block, if an invariant is broken: every reference has its sequence, every
  // pin its frame, and pool and prefix cache agree. Between two calls, not within one.
  absl::Status Audit() const;
  std::vector<NamedBlock> CachedBlocks() const { return blocks_.CachedBlocks(); }

 private:
  static constexpr int32_t kNoToken = -1;

  // A run of a step that is begun and not finished. The sequence may have ended. Positions are as
  // they were when it was begun: a run before it may turn out to have drawn more or fewer tokens.
  struct BegunRun {
    EngineSequence* sequence = nullptr;
    int32_t first_position = 0;
    int32_t end_position = 0;
    bool complete = false;    // All its tokens.
    bool draws_wait = false;  // For a mask that depends on the step before.
  };
  using BegunStep = std::vector<BegunRun>;

  Engine(const EngineOptions& options, Executor* executor, Outbox* outbox, PeerOutbox* peers,
         KvReceiver* receiver, LeaseKeeper* leases, TokenMasker* masker);
  // Every input begins with this.
  void AdvanceTo(int64_t now_us);

  // ---- submit.cc ----
  absl::Status CheckSubmit(SessionId router, const Submit& submit) const;
  absl::Status CheckQueue() const;
  void Refuse(SessionId router, const Submit& submit, absl::Status status);
  int64_t RetryAfterUs(const absl::Status& refused) const;
  void CountAdmitted(size_t num_admitted);
  Attempt* AddAttempt(SessionId router, const Submit& submit);
  // Tokens of each of its choices that are ever computed; the last one is only drawn.
  static int64_t FinalTokens(const RequestSpec& spec);
  // The sequence takes the spec's token ids, and borrows the rest.
  void SetUpPrompt(RequestSpec* spec, EngineSequence* sequence);
  std::unique_ptr<SequenceMasks> MasksOf(const RequestSpec& spec);
  void OnPrefillSubmit(SessionId decode, const PrefillSubmit& submit, CommandCharge charge);
  absl::Status CheckPrefillSubmit(const PrefillSubmit& submit) const;
  void AddJob(const JobKey& key, const PrefillSubmit& submit, CommandCharge charge);

  // ---- step.cc ----
  void StartAdmitted(const StepPlan& plan);
  void Begin(const StepPlan& plan, StepResult* result);
  void CountOnDraw(const BegunRun& run, int32_t index);
  static ChunkNotice NoticeOf(const BegunRun& run);
  SequenceRun RunOf(EngineSequence* sequence, int32_t num_tokens) const;
  void AddDraws(EngineSequence* sequence, SequenceRun* run) const;
  static bool MaskDraws(EngineSequence* sequence);
  void BeginWaitingDraws();
  int32_t LastPosition(const EngineSequence& sequence) const;
  void Settle(StepResult* result);
  bool RelieveMemory();
  void WatchQuarantine(bool moves);
  int64_t NextWakeup() const;

  // ---- publish.cc ----
  absl::Status Publish(const BegunStep& step, StepOutput* outputs);
  void CountFailure(uint64_t number, const absl::Status& status);
  void ShowOldestStep();
  void FailRun(EngineSequence* sequence, const absl::Status& status);
  void CollectPromptLogprobs(EngineSequence* sequence, int32_t first, RunOutput* output);
  void PublishChoice(EngineSequence* sequence, std::vector<SampledToken>* drawn);
  void PublishPrompt(EngineSequence* sequence, RunOutput* output);
  absl::Status PublishToDecode(const BegunRun& run, RunOutput* output);
  // Blocks that will not change once the sequence's first `num_tokens` are computed.
  std::span<const BlockId> FinalBlocks(const EngineSequence& sequence, int32_t num_tokens) const;
  void DeliverFirstTokens(Attempt* attempt, std::vector<SampledToken>* tokens);
  bool DeliverToken(Attempt* attempt, int32_t choice, int32_t position, SampledToken* token);
  // Wherever it runs: what does not fit a worker whole is refused there.
  static FinishReason RequestedFinish(const RequestSpec& spec, int32_t position, int32_t token);
  void ForkChoices(Attempt* attempt);

  // ---- endings.cc ----
  void ExpireAttempts();
  template <typename Predicate>
  void EndAttemptsIf(Predicate ends, const absl::Status& status, bool notify);
  void EndAttempt(Attempt* attempt, const absl::Status& status, bool notify = true);
  void FinishAttempt(Attempt* attempt);
  void EndSequence(EngineSequence* sequence);
  void PassOrderOn(const EngineSequence& ended);
  void ForgetAttempt(Attempt* attempt);
  void ReleaseSequence(EngineSequence* sequence);

  // ---- transfers.cc ----
  bool TrySubmitToPrefill(Attempt* attempt, const Submit& submit);
  // DecodeHost.
  int32_t GrantableBlocks() const override;
  void MakeRoom(uint64_t order, int32_t num_blocks) override;
  std::vector<BlockId> AppendBlocks(const AttemptKey& attempt, int32_t num_blocks) override;
  void OnFirstToken(const AttemptKey& attempt, const FirstToken& first,
                    int32_t cached_tokens) override;
  void OnTransferred(const AttemptKey& attempt) override;
  void ComputeHere(const AttemptKey& attempt) override;
  void EndAttempt(const AttemptKey& attempt, RouterEvent last) override;
  // PrefillHost.
  void EndPrompt(const JobKey& key) override;

  const EngineOptions options_;
  Executor* const executor_;
  const bool overlaps_steps_;
  // What a choice may draw beyond one token in the step that begins, and in the one that runs.
  const int32_t lookahead_tokens_;
  Outbox* const outbox_;
  TokenMasker* const masker_;

  int64_t now_us_ = 0;
  EngineBlocks blocks_;
  Scheduler scheduler_;
  DecodeSide decode_;
  PrefillSide prefill_;

  uint64_t num_arrivals_ = 0;  // Attempts and jobs.
  bool draining_ = false;
  int32_t preempted_ = 0;                   // Since the last step.
  bool stalled_ = false;                    // The last step had work but could run none of it.
  int64_t quarantine_since_us_ = kNeverUs;  // Since when it is too large, or in the way.
  int32_t failed_steps_ = 0;                // Since one succeeded, each of which was begun alone.
  uint64_t last_excused_ =
      0;  // Steps up to this were begun before it was known that one had failed.
  // When somebody who waited was admitted last; before that, since when anybody waits.
  std::optional<int64_t> last_admission_us_;
  int64_t admission_interval_us_ = 0;  // Moving average.

  // Ordered maps: the order of events must not depend on addresses or hashes.
  std::map<AttemptKey, std::unique_ptr<Attempt>> attempts_;
  ExpiryQueue<AttemptKey> attempt_deadlines_;
  EndedKeys<AttemptKey> ended_attempts_;
  std::map<JobKey, std::unique_ptr<PrefillJob>> jobs_;  // The jobs that prefill_ has.

  uint64_t begun_ = 0, finished_ = 0;  // Steps.
  std::atomic<int32_t> step_tokens_{0};
  int32_t tokens_of_steps_[kMaxStepsBegun] = {};  // By number.
  BegunStep steps_[kMaxStepsBegun];               // By number.

  // What the step that is being begun says; kept for the capacity.
  std::vector<SequenceRun> runs_;
  std::vector<ChunkNotice> chunks_;
  struct Ended {
    std::unique_ptr<EngineSequence> sequence;
    uint64_t step = 0;  // Until this one is over they may be named.
  };
  void Bury(std::unique_ptr<EngineSequence> sequence);
  std::deque<Ended> graveyard_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_ENGINE_H_
