// Owns every request of one router, from admission to its one terminal event.
//
// Prompt and generated ids, parameters, seed, stop matcher and detokenizer live here and outlive
// any worker. A request is a set of streams: at first one that carries all n choices; once they
// have diverged, one a choice. A stream is placed on workers as a numbered attempt; when the
// attempt ends without a finish, the stream goes on elsewhere from the tokens it has
// (docs/protocol.md, Resume). The client sees one uninterrupted sequence of positions.
//
// Events count only for the current attempt of their choice, in the incarnation that the session
// was opened to, at the next position. One thread, every method; sinks and outbox are called on it
// and must not call back. `now_us` never goes back.

#ifndef TANDEM_RUNTIME_REQUEST_REQUEST_OWNER_H_
#define TANDEM_RUNTIME_REQUEST_REQUEST_OWNER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/expiry_queue.h"
#include "runtime/fleet/fleet.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/request/request_counters.h"
#include "runtime/request/request_sink.h"
#include "runtime/request/request_state.h"
#include "runtime/request/suspicion.h"
#include "runtime/request/unplaced_requests.h"
#include "runtime/request/waiting_groups.h"
#include "runtime/request/worker_offers.h"
#include "runtime/routing/prefix_index.h"
#include "runtime/routing/routing_policy.h"

namespace tandem {

// What a router can cause at its workers. Calls only enqueue; what cannot be delivered shows as a
// lost session.
class RouterOutbox {
 public:
  virtual ~RouterOutbox() = default;
  virtual void SendSubmit(SessionId session, const Submit& submit) = 0;
  virtual void SendCancel(SessionId session, const Cancel& cancel) = 0;
  // Breaks the session, which ends all its attempts at the worker; the owner has forgotten it
  // already, and OnSessionLost may or may not follow. The service dials a new one.
  virtual void CloseSession(SessionId session, std::string_view why) = 0;
  // Events of this worker's prefix cache are missing: a new Watch brings a snapshot.
  virtual void RestartWatch(const WorkerId& worker) = 0;
};

inline constexpr int32_t kMaxOpenRequests = 16'384;

struct RequestOwnerOptions {
  uint64_t router_incarnation = 0;  // Random, not 0.
  LivenessTimes times;
  DisaggregatePolicy disaggregate = DisaggregatePolicy::kAuto;
  int32_t max_requests = kMaxOpenRequests;     // Accepted and not finished.
  int32_t max_waiting_requests = 4'096;        // Accepted, without a token or a worker.
  int64_t max_index_entries = 4'000'000;       // In the prefix index.
  int64_t nobody_alive_grace_us = 10'000'000;  // Then a request without a token is Unavailable.
};

// request_owner.cc takes the inputs and the time, placement.cc gives streams to workers and takes
// them back, events.cc reads what workers say.
class RequestOwner {
 public:
  // Borrows `outbox`, which outlives it. InvalidArgument if the options contradict each other.
  static absl::StatusOr<std::unique_ptr<RequestOwner>> Create(const RequestOwnerOptions& options,
                                                              std::unique_ptr<RoutingPolicy> policy,
                                                              RouterOutbox* outbox);

  // ---- From clients ----

  // Accepts, and places if it can. ResourceExhausted if too many wait, InvalidArgument for a
  // spec that is not valid, or of which something is generated already, and for stop strings that
  // cannot be matched; the sink is then never called. Too many: the youngest one that
  // waits of the client with most of them gives way, if that is another client and has two more.
  absl::StatusOr<RequestId> Start(ClientRequest asked, int64_t now_us);
  // The client is gone, or an operator aborts: OnError(Cancelled). False if it has ended already.
  bool Cancel(const RequestId& request, int64_t now_us);
  // The router ends: OnError(`why`), which is Unavailable, for every request.
  void FailAll(const absl::Status& why, int64_t now_us);

  // ---- From workers ----

  // Watch. `address` is where the worker was found; it is what decode workers dial.
  // FailedPrecondition if another worker of its name is alive: this one is asked for a new Watch
  // with each heartbeat, until that one is gone.
  absl::Status OnRegistration(const std::string& address, const WorkerRegistration& registration,
                              int64_t now_us);
  void OnHeartbeat(const WorkerId& worker, const WorkerLoad& load, bool draining, int64_t now_us);
  void OnKvEvents(const WorkerId& worker, const KvEvents& events);
  void OnWatchLost(const WorkerId& worker);

  // Session. Ids are never reused; one session a worker, opened after its registration. False: not
  // wanted (the incarnation is not known, is silent or stalled, or has a session); the caller
  // closes it.
  bool OnSessionUp(const WorkerId& worker, SessionId session, int64_t now_us);
  // Whether it would take one: the worker is known, not silent, and makes progress.
  bool WantsSession(const WorkerId& worker, int64_t now_us) const;
  void OnSessionLost(SessionId session, int64_t now_us);
  void OnStepBatch(SessionId session, const StepBatch& batch, int64_t now_us);

  // ---- Time ----

  // Deadlines, silent workers, waiting requests. Call at the time it returns, and at the latest
  // then after any other call (a heartbeat period ahead at most).
  int64_t Tick(int64_t now_us);

  // Static list of worker addresses; before the first registration.
  void ExpectWorkers(const std::vector<std::string>& addresses) { fleet_.Expect(addresses); }
  // Or what a DNS name has now, as often as it is asked.
  void SetExpectedWorkers(std::set<std::string> addresses) {
    fleet_.SetExpected(std::move(addresses));
  }
  const Fleet& fleet() const { return fleet_; }
  const PrefixIndex& prefix_index() const { return index_; }
  const RequestCounters& counters() const { return counters_; }
  int64_t num_requests() const { return std::ssize(requests_); }  // Accepted and not finished.
  int64_t num_waiting() const { return waiting_.size(); }         // Streams without an attempt.

 private:
  RequestOwner(const RequestOwnerOptions& options, std::unique_ptr<RoutingPolicy> policy,
               RouterOutbox* outbox)
      : options_(options),
        outbox_(outbox),
        fleet_(options.times),
        index_(options.max_index_entries),
        policy_(std::move(policy)),
        suspicion_(&fleet_, options.times) {}

  // ---- request_owner.cc ----

  // The one terminal event. The request is gone when they return.
  void Finish(RequestState* request);
  void Fail(RequestState* request, const absl::Status& status, int64_t now_us);
  void Fail(RequestState* request, const absl::Status& status, RequestOutcome outcome,
            int64_t now_us);
  void Erase(RequestState* request);
  // Ends one that waits so that one of `client` may. False: nobody has two more than it.
  bool GiveWay(const std::string& client, int64_t now_us);
  RequestState* Find(const RequestId& id);

  // ---- placement.cc ----

  // Gives waiting streams to workers, by turns. `may_fail`: requests that cannot go on get
  // their error; otherwise that waits for the next Tick. Costs as much as there are groups, and
  // streams that find a place.
  void PlaceWaiting(int64_t now_us, bool may_fail);
  // False: neither it nor what waits behind it in its group goes anywhere now. `spoken_for`: the
  // workers that somebody waits for who was before it.
  bool PlaceFirst(WaitingGroups::Group* group, int64_t now_us, bool may_fail,
                  std::set<std::string>* spoken_for);
  RoutingDecision ChooseRoute(const RequestState& request, const StreamState& stream,
                              const std::set<std::string>& spoken_for, int64_t now_us);
  // Prompt, and what was generated: what its next attempt begins with.
  static int32_t NumTokens(const RequestState& request, const StreamState& stream);
  // Prompt and all that may be generated: as promised, or as it would be now.
  int64_t TotalTokens(const RequestState& request) const;
  // Nothing, or why a request that found nobody must end.
  absl::Status GiveUpReason(const RequestState& request, WaitingGroups::Group* group,
                            NoRoute why_not, int64_t now_us);
  void Wait(const StreamKey& key);
  WaitingGroups::Waiter WaiterOf(const StreamKey& key) const;
  // Workers came or went: what fits where may have changed.
  void RegroupWaiting();
  void SendAttempt(RequestState* request, size_t stream, const Route& route, int64_t now_us);
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

  // ---- events.cc ----

  enum class Verdict : uint8_t { kGoOn, kProtocolError };
  struct FoundStream {
    RequestState* request = nullptr;
    StreamState* stream = nullptr;
    size_t index = 0;  // The stream's place in its request.
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

  const RequestOwnerOptions options_;
  RouterOutbox* const outbox_;
  Fleet fleet_;
  PrefixIndex index_;
  const std::unique_ptr<RoutingPolicy> policy_;
  const Suspicion suspicion_;
  RequestCounters counters_;

  std::map<uint64_t, RequestState> requests_;         // By counter.
  std::map<SessionId, std::set<StreamKey>> running_;  // Every stream is here,
  WaitingGroups waiting_;                             // or here, or over.
  WorkerOffers offers_;
  UnplacedRequests unplaced_;
  ExpiryQueue<uint64_t> deadlines_;  // When requests end, by counter.
  uint64_t last_counter_ = 0;
  bool may_place_ = false;  // Something changed since those that wait were last walked.
  int64_t last_tick_us_ = -1;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_REQUEST_OWNER_H_
