// Internal to runtime/request: request_owner.cc takes the inputs, placement.cc gives streams to
// workers and takes them back, suspicion.cc finds requests that kill workers, events.cc reads what
// workers say.

#ifndef TANDEM_RUNTIME_REQUEST_REQUEST_OWNER_IMPL_H_
#define TANDEM_RUNTIME_REQUEST_REQUEST_OWNER_IMPL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/expiry_queue.h"
#include "runtime/request/request_state.h"
#include "runtime/request/waiting_streams.h"

namespace tandem {

class RequestOwner::Impl {
 public:
  Impl(const RequestOwnerOptions& options, std::unique_ptr<RoutingPolicy> policy,
       RouterOutbox* outbox)
      : options_(options),
        outbox_(outbox),
        fleet_(options.times),
        index_(options.max_index_entries),
        policy_(std::move(policy)) {}

  // ---- request_owner.cc ----
  absl::StatusOr<RequestId> Start(RequestFacts facts, int64_t now_us);
  bool Cancel(const RequestId& request, int64_t now_us);
  void FailAll(const absl::Status& why, int64_t now_us);
  absl::Status OnRegistration(const std::string& address, const WorkerRegistration& registration,
                              int64_t now_us);
  void OnHeartbeat(const WorkerId& worker, const WorkerLoad& load, bool draining, int64_t now_us);
  void OnKvEvents(const WorkerId& worker, const KvEvents& events);
  void OnWatchLost(const WorkerId& worker);
  bool OnSessionUp(const WorkerId& worker, SessionId session, int64_t now_us);
  void OnSessionLost(SessionId session, int64_t now_us);
  int64_t Tick(int64_t now_us);

  // ---- events.cc ----
  void OnStepBatch(SessionId session, const StepBatch& batch, int64_t now_us);

  const RequestOwnerOptions options_;
  RouterOutbox* const outbox_;
  Fleet fleet_;
  PrefixIndex index_;
  const std::unique_ptr<RoutingPolicy> policy_;
  RequestCounters counters_;
  std::map<uint64_t, RequestState> requests_;  // By counter.

  // What decides which workers a stream may go to: streams of equal needs wait in one group, and
  // while the first of it finds nobody, so does every other.
  struct Need {
    std::string model;
    std::string numerics_id;
    int64_t offer = 0;         // The least that a worker offers and it still fits.
    int64_t prompt_offer = 0;  // The same of prefill workers, for its prompt; 0: it stays local.
    // What may kill workers waits for one of its own, and where a step failed it goes last.
    std::optional<StreamKey> apart;
    auto operator<=>(const Need&) const = default;
  };
  struct Group {
    WaitingStreams streams;
    int64_t nobody_since_us = -1;  // -1: somebody that they fit is alive.
  };
  using Groups = std::map<Need, Group>;
  Groups groups_;
  uint64_t last_turn_ = 0;                         // In the line of all groups.
  std::map<StreamKey, Groups::iterator> waiting_;  // For a worker.
  // Of every registered worker: model, and the tokens that it offers. Of those that prefill, the
  // tokens of a prompt.
  std::set<std::pair<std::string, int64_t>> offers_;
  std::set<int64_t> prompt_offers_;

 private:
  // ---- placement.cc ----

  // Gives waiting streams to workers, by turns. `may_fail`: requests that cannot go on get
  // their error; otherwise that waits for the next Tick. Costs as much as there are groups, and
  // streams that find a place.
  void PlaceWaiting(int64_t now_us, bool may_fail);
  // False: neither it nor what waits behind it in its group goes anywhere now. `spoken_for`: the
  // workers that somebody waits for who was before it.
  bool PlaceFirst(Group* group, int64_t now_us, bool may_fail, std::set<std::string>* spoken_for);
  RoutingDecision Route(const RequestState& request, const StreamState& stream,
                        const std::set<std::string>& spoken_for, int64_t now_us);
  // Prompt, and what was generated: what its next attempt begins with.
  static int32_t NumTokens(const RequestState& request, const StreamState& stream);
  // Prompt and all that may be generated: as promised, or as it would be now.
  int64_t TotalTokens(const RequestState& request) const;
  // Nothing, or why a request that found nobody must end.
  absl::Status GiveUpReason(const RequestState& request, Group* group, NoRoute why_not,
                            int64_t now_us);
  void Wait(const StreamKey& key);
  void StopWaiting(const StreamKey& key);
  Need NeedOf(const StreamKey& key) const;
  // Workers came or went: what fits where may have changed.
  void RegroupWaiting();
  void SendAttempt(RequestState* request, size_t stream, const tandem::Route& route,
                   int64_t now_us);
  // Takes the stream from its worker's books; it is then neither running nor waiting.
  void DetachAttempt(RequestState* request, size_t stream);
  void SendCancelOf(const RequestState& request, size_t stream, int64_t now_us);
  void CancelAttempt(RequestState* request, size_t stream, int64_t now_us);
  // The attempt is over without a finish; the stream waits for its next one. `lost`: a worker that
  // is gone, and may be so because it computed this stream.
  void Resume(RequestState* request, size_t stream, ResumeReason reason,
              const std::optional<WorkerId>& lost, int64_t now_us);
  // Puts the stream back into the queue, one stream a choice if they have diverged.
  void Requeue(RequestState* request, size_t stream);
  // A session that the fleet no longer has: all its attempts, and perhaps the worker, are over.
  void ResumeAll(const WorkerId& worker, SessionId session, ResumeReason reason, int64_t now_us);
  // Prompts that a worker in `fault` computes for decode workers.
  void ResumePrefills(const FleetWorker& prefill, ResumeReason reason, int64_t now_us);
  void BreakSession(SessionId session, std::string_view why, ResumeReason reason, int64_t now_us);
  // What its prompt counts for, where it is computed.
  static LiveWork LivePrompt(const StreamState& stream);
  void StopPromptCount(StreamState* stream);

  // ---- suspicion.cc ----

  enum class Guilt : uint8_t { kNotProven, kUndecided, kProven };
  // Not kNotProven: `evidence` is the deaths that it rests on.
  Guilt Judge(const StreamState& stream, int64_t now_us, std::vector<WorkerDeath>* evidence) const;
  static absl::Status PoisonError(const std::vector<WorkerDeath>& evidence);
  bool IsSuspect(const StreamState& stream) const;
  // Choices of a suspect are tried one by one: each would else end workers of its own.
  bool SiblingOnTrial(const RequestState& request, size_t stream) const;
  // Those that may have been caused by this position, oldest first.
  std::vector<WorkerDeath> DeathsAt(const StreamState& stream, int32_t position) const;
  // It was heard, and not stuck, after what was taken for its death.
  bool Outlived(const WorkerDeath& death) const;
  void ForgetOutlived();  // While the workers are known that did.
  bool IsCertain(const WorkerDeath& death, int64_t now_us) const;
  void AddDeath(RequestState* request, size_t stream, const WorkerId& worker, ResumeReason reason,
                int64_t now_us) const;
  // The positions with which the stream may have ended `worker`.
  std::pair<int32_t, int32_t> PlaceOf(const RequestState& request, const StreamState& stream,
                                      const WorkerId& worker, ResumeReason reason) const;
  // A life of this name tells how earlier ones ended.
  void LearnEnds(const std::string& name);
  void BeginChunk(StreamState* stream, const WorkerId& worker, const ChunkBegun& chunk) const;

  // ---- request_owner.cc ----

  // The one terminal event. The request is gone when they return.
  void Finish(RequestState* request);
  void Fail(RequestState* request, const absl::Status& status, int64_t now_us);
  void Fail(RequestState* request, const absl::Status& status, RequestOutcome outcome,
            int64_t now_us);
  void Erase(RequestState* request);
  void SetUnplaced(RequestState* request, bool unplaced);
  // Ends one that waits so that one of `client` may. False: nobody has two more than it.
  bool GiveWay(const std::string& client, int64_t now_us);
  RequestState* Find(const RequestId& id);

  // ---- events.cc ----

  enum class Verdict : uint8_t { kGoOn, kProtocolError };
  struct FoundStream {
    RequestState* request = nullptr;
    StreamState* stream = nullptr;
    size_t index = 0;  // Of the stream, in its request.
  };
  // The running stream that an event of `attempt`, arriving on `session`, belongs to; null if it is
  // over, or of another router. `prefill`: or the stream whose prompt this worker computes for
  // another.
  FoundStream FindStream(SessionId session, const AttemptId& attempt,
                         const std::optional<WorkerId>& prefill = std::nullopt);
  Verdict OnEvent(SessionId session, const PromptEvent& event, int64_t now_us);
  Verdict OnEvent(SessionId session, const TokenEvent& event, int64_t now_us);
  Verdict OnEvent(SessionId session, const RefusedEvent& event, int64_t now_us);
  Verdict OnEvent(SessionId session, const EndedEvent& event, int64_t now_us);
  Verdict OnEvent(SessionId session, const AbortReply& event, int64_t now_us);
  Verdict OnChunk(SessionId session, const ChunkBegun& chunk);
  void ReportPrompt(RequestState* request, const StreamState& stream, const PromptEvent& event);
  void AcceptToken(RequestState* request, StreamState* stream, const TokenEvent& event,
                   int64_t now_us);

  std::map<SessionId, std::set<StreamKey>> running_;
  ExpiryQueue<uint64_t> deadlines_;  // Of requests, by counter.
  uint64_t last_counter_ = 0;
  int32_t num_unplaced_ = 0;                               // Requests that are `unplaced`.
  std::map<std::string, std::set<uint64_t>> unplaced_of_;  // Their counters, by client.
  bool may_place_ = false;  // Something changed since the queue was last walked.
  int64_t last_tick_us_ = -1;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_REQUEST_OWNER_IMPL_H_
