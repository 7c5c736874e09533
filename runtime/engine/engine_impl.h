// The engine's state, and its work split by topic: submit.cc, step.cc, publish.cc, endings.cc,
// prefill_side.cc and decode_side.cc implement what they are named after.

#ifndef TANDEM_RUNTIME_ENGINE_ENGINE_IMPL_H_
#define TANDEM_RUNTIME_ENGINE_ENGINE_IMPL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/check.h"
#include "runtime/base/expiry_queue.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/attempt.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/kv_memory.h"
#include "runtime/protocol/grant_policy.h"
#include "runtime/protocol/peer_pauses.h"
#include "runtime/protocol/tombstones.h"
#include "runtime/scheduler/scheduler.h"

namespace tandem {

class Engine::Impl {
 public:
  Impl(const EngineOptions& options, Executor* executor, Outbox* outbox, KvReceiver* receiver,
       LeaseKeeper* leases);

  // The contracts are Engine's.
  void OnSubmit(SessionId router, const Submit& submit, int64_t now_us, PromptCharge charge);
  void OnCancel(SessionId router, const Cancel& cancel, int64_t now_us);
  void OnRouterLost(SessionId router, int64_t now_us);
  void OnDecodeMessage(SessionId decode, const DecodeToPrefill& message, int64_t now_us,
                       PromptCharge charge);
  void OnDecodeLost(SessionId decode, int64_t now_us);
  void OnFrameSent(uint64_t send_id, bool ok, int64_t now_us);
  void OnPrefillMessage(const WorkerId& prefill, const PrefillToDecode& message, int64_t now_us);
  void OnPrefillLost(const WorkerId& prefill, const absl::Status& why, int64_t now_us);
  void OnFrameReceived(const ReceivedFrame& frame, int64_t now_us);
  void Drain(int64_t now_us);
  bool drained() const;
  StepResult Step(int64_t now_us);
  WorkerLoad Load() const;
  KvEvents TakeKvEvents() { return memory_.TakeEvents(); }
  KvEvents SnapshotKvEvents() const { return memory_.Snapshot(); }
  bool quarantine_is_stuck() const;
  bool steps_keep_failing() const { return failed_steps_ >= kMaxFailedSteps; }
  absl::Status Audit() const;
  std::vector<NamedBlock> CachedBlocks() const { return memory_.CachedBlocks(); }

 private:
  static constexpr int32_t kNoToken = -1;

  // A block that a transport reads.
  struct FrameSend {
    JobKey job;
    uint64_t serial = 0;  // Of the job: another one may come to have its key.
    int32_t ordinal = 0;
    BlockId block = 0;
  };

  // Every input begins with this.
  void Note(int64_t now_us);
  static int64_t After(int64_t now_us, int64_t duration_us);

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
  static void SetUpPrompt(RequestSpec* spec, EngineSequence* sequence);

  // ---- step.cc ----
  void Execute(const StepPlan& plan, StepResult* result);
  void BeginChunks(const StepPlan& plan);
  static SequenceRun RunOf(const EngineSequence& sequence, int32_t num_tokens);
  void WatchQuarantine(bool moves);
  int64_t NextWakeup() const;

  // ---- publish.cc ----
  void Publish(const StepPlan& plan);
  void FailRun(EngineSequence* sequence, const absl::Status& status);
  void CollectPromptLogprobs(EngineSequence* sequence, int32_t first, RunOutput* output);
  void PublishToRouter(EngineSequence* sequence, RunOutput* output);
  void DeliverFirstTokens(Attempt* attempt, std::vector<SampledToken>* tokens);
  bool DeliverToken(Attempt* attempt, int32_t choice, EngineSequence* sequence,
                    SampledToken* token);
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
  bool Ended(const AttemptKey& attempt) const;
  bool Ended(const JobKey& job) const;
  void RememberEnded(const AttemptKey& attempt, int64_t until_us);
  void RememberEnded(const JobKey& job, int64_t until_us);

  // ---- prefill_side.cc ----
  void OnPrefillSubmit(SessionId decode, const PrefillSubmit& submit, PromptCharge charge);
  void PumpHeld(SessionId decode);
  absl::Status CheckPrefillSubmit(SessionId decode, const PrefillSubmit& submit) const;
  void OnPrefillCancel(SessionId decode, const PrefillCancel& cancel);
  void StartAdmitted(const StepPlan& plan);
  void PublishToDecode(EngineSequence* sequence, RunOutput* output);
  void OfferBlocks(PrefillJob* job);
  void Pump(PrefillJob* job);
  void ExpireJobs();
  void RefuseWaitingJobs(const absl::Status& status);
  void RefuseJob(PrefillJob* job, const absl::Status& status);
  void ForgetJob(PrefillJob* job);
  void WithdrawFrames(const PrefillJob& job);
  PrefillJob* FindJob(SessionId decode, JobId job);

  // ---- decode_side.cc ----
  bool TrySubmitToPrefill(Attempt* attempt, const Submit& submit);
  bool OnFirstToken(Attempt* attempt, const FirstToken& first);
  void OnPrefillRefused(Attempt* attempt, const PrefillRefused& refused);
  void GrantHeld();
  void GrantBlocks(Attempt* attempt);
  int32_t GrantableBlocks() const;
  uint64_t OldestHeldGrant() const;
  void AfterTransferInput(Attempt* attempt);
  void Commit(Attempt* attempt);
  void ComputeHere(Attempt* attempt);
  void EndTransfer(Attempt* attempt);
  void ExpireReservations();
  bool RelieveMemory();
  Attempt* FindRemote(JobId job, const WorkerId& prefill) const;
  void PausePeer(const WorkerId& peer, PauseReason reason);
  void JudgeLink(const Attempt& attempt);

  const EngineOptions options_;
  Executor* const executor_;
  Outbox* const outbox_;
  KvReceiver* const receiver_;
  LeaseKeeper* const leases_;

  KvMemory memory_;
  Scheduler scheduler_;

  int64_t now_us_ = 0;
  uint64_t num_arrivals_ = 0;  // Attempts and jobs.
  bool draining_ = false;
  int32_t preempted_ = 0;                     // Since the last step.
  bool stalled_ = false;                      // The last step had work but could run none of it.
  uint64_t blocked_order_ = kNoOrder;         // As of the last step's plan.
  int64_t quarantine_since_us_ = kNever;      // That it is too large, or in the way.
  int32_t failed_steps_ = 0;                  // Since one succeeded.
  std::optional<int64_t> last_admission_us_;  // Of those who wait; before it, since when they do.
  int64_t admission_interval_us_ = 0;         // Moving average.

  // Of routers. Ordered maps: the order of events must not depend on addresses or hashes.
  std::map<AttemptKey, std::unique_ptr<Attempt>> attempts_;
  ExpiryQueue<AttemptKey> attempt_deadlines_;
  // Until their deadline a copy of their submit may still come.
  ExpiryQueue<AttemptKey> ended_attempts_;
  Tombstones<AttemptKey> tombstones_;

  // As the decode side.
  GrantPolicy grants_;
  ExpiryQueue<JobId> holds_;  // Grants that are held: for how long at most if nothing moves.
  std::map<JobId, Attempt*> remote_;  // Whose prompt a prefill worker has.
  ExpiryQueue<JobId> reservation_expiries_;
  PeerPauses pauses_;
  std::map<WorkerId, int64_t> last_block_us_;  // From prefill workers; until their session is lost.
  std::multiset<BlockId> orphans_;  // Of closed reservations; a frame may still be written there.

  // As the prefill side.
  std::map<JobKey, std::unique_ptr<PrefillJob>> jobs_;
  ExpiryQueue<JobKey> job_leases_;
  ExpiryQueue<JobKey> job_deadlines_;
  ExpiryQueue<JobKey> ended_jobs_;  // As of attempts.
  Tombstones<JobKey> job_tombstones_;
  std::map<uint64_t, FrameSend> sends_;
  std::map<JobKey, std::set<uint64_t>> sends_of_;  // Which of sends_, if any.
  std::map<SessionId, DecodeLink> links_;          // To whom frames are on their way.
  uint64_t next_send_id_ = 1;

  // Of the step in progress, kept for their capacity.
  std::vector<SequenceRun> runs_;
  std::vector<ChunkNotice> chunks_;
  StepOutput output_;
  std::vector<std::unique_ptr<EngineSequence>> graveyard_;  // Ended; the plan may name them.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_ENGINE_IMPL_H_
