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
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/fleet/fleet.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/request/detokenizer.h"
#include "runtime/request/request_counters.h"
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

// What happened to one choice. Spans and views live during the call.
struct Delta {
  int32_t choice = 0;
  int32_t position = 0;  // Of `token`, in prompt + generated.
  const SampledToken* token = nullptr;
  // Text that is certain: may be empty, may belong to earlier tokens. Text that could begin a stop
  // string comes later or never; a stop string and a stop token have none.
  std::string_view text;
  FinishReason finish = FinishReason::kNone;  // Not kNone: last delta of this choice.
  std::string_view stop_string;               // The one that finished it, where one did.
};

struct PromptReport {
  int32_t cached_tokens = 0;
  std::span<const SampledToken> prompt_logprobs;
  std::string_view numerics_id;  // The same for the whole request.
  int64_t arrived_us = 0;        // As in RequestReport.
  int64_t first_submit_us = 0;
};

struct RequestReport {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;  // Of all choices, stop tokens included.
  int32_t cached_tokens = 0;
  int32_t attempts = 0;
  int32_t resumes = 0;
  int64_t arrived_us = 0;
  int64_t first_submit_us = 0;  // 0: never sent to a worker.
};

// Where a request's results go. OnPrompt comes once and before the first OnDelta; exactly one of
// OnDone and OnError comes, last. Never called inside Start.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void OnPrompt(const PromptReport& prompt) = 0;
  virtual void OnDelta(const Delta& delta) = 0;  // One per token.
  virtual void OnDone(const RequestReport& report) = 0;
  // Cancelled, DeadlineExceeded, Unavailable, ResourceExhausted, InvalidArgument, Internal.
  virtual void OnError(const absl::Status& status, const RequestReport& report) = 0;
};

struct RequestFacts {
  std::string client;  // Whose it is: clients share the places of those that wait, and take turns.
  RequestSpec spec;    // Of its prompt; time_left_us 0: kDefaultDeadlineUs.
  // The client set no max_tokens: what `spec` says is the most that it may get. Its first
  // placement fixes that to what the largest worker has room for, and then it is a promise.
  bool open_ended = false;
  std::vector<std::string> stop_strings;
  DetokenizerFactory make_detokenizer;  // Null: no text; then no stop strings either.
  std::string model;
  RequestSink* sink = nullptr;  // Lives until OnDone or OnError.
};

struct RequestOwnerOptions {
  uint64_t router_incarnation = 0;  // Random, not 0.
  LivenessTimes times;
  DisaggregatePolicy disaggregate = DisaggregatePolicy::kAuto;
  int32_t max_requests = 16'384;               // Accepted and not finished.
  int32_t max_waiting_requests = 4'096;        // Of those, without a token or a worker.
  int64_t max_index_entries = 4'000'000;       // Of the prefix index.
  int64_t nobody_alive_grace_us = 10'000'000;  // Then a request without a token is Unavailable.
};

inline constexpr int64_t kDefaultDeadlineUs = 600'000'000;
// At one place of a stream, in a row: it did not get past it in between.
inline constexpr int32_t kDeathsBeforeAlone = 2;
inline constexpr int32_t kDeathsBeforePoison = 4;

class RequestOwner {
 public:
  // Borrows `outbox`, which outlives it. InvalidArgument if the options contradict each other.
  static absl::StatusOr<std::unique_ptr<RequestOwner>> Create(const RequestOwnerOptions& options,
                                                              std::unique_ptr<RoutingPolicy> policy,
                                                              RouterOutbox* outbox);
  ~RequestOwner();

  // ---- From clients ----

  // Accepts, and places if it can. ResourceExhausted if too many wait, InvalidArgument for a
  // spec that is not valid, or of which something is generated already, and for stop strings that
  // cannot be matched; the sink is then never called. Too many: the youngest one that
  // waits of the client with most of them gives way, if that is another client and has two more.
  absl::StatusOr<RequestId> Start(RequestFacts facts, int64_t now_us);
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
  void OnSessionLost(SessionId session, int64_t now_us);
  void OnStepBatch(SessionId session, const StepBatch& batch, int64_t now_us);

  // ---- Time ----

  // Deadlines, silent workers, waiting requests. Call at the time it returns, and at the latest
  // then after any other call (a heartbeat period ahead at most).
  int64_t Tick(int64_t now_us);

  // Static list of worker addresses; before the first registration.
  void ExpectWorkers(const std::vector<std::string>& addresses);
  // Or what a DNS name has now, as often as it is asked.
  void SetExpectedWorkers(std::set<std::string> addresses);
  const Fleet& fleet() const;
  const PrefixIndex& prefix_index() const;
  const RequestCounters& counters() const;
  int64_t num_requests() const;  // Accepted and not finished.
  int64_t num_waiting() const;   // Streams without an attempt.

 private:
  class Impl;
  explicit RequestOwner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_REQUEST_OWNER_H_
