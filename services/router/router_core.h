// The router's thread: owns the RequestOwner, to which everything else only posts commands.
//
// Clients' requests go through a bounded queue (full: ResourceExhausted). What workers say is never
// refused, but of each Watch and each Session the next message is read when the last has been dealt
// with: one of each waits at most. The thread wakes at the owner's next time, at least every
// heartbeat.

#ifndef TANDEM_SERVICES_ROUTER_ROUTER_CORE_H_
#define TANDEM_SERVICES_ROUTER_ROUTER_CORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/bounded_queue.h"
#include "runtime/base/clock.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "runtime/request/request_owner.h"
#include "services/router/fleet_changes.h"
#include "services/router/router_metrics.h"
#include "services/server/convert.h"

namespace tandem {

// One open Watch of a worker. Lives as long as the core holds it.
class WatchReader {
 public:
  virtual ~WatchReader() = default;
  // The last WatchUpdate has been dealt with. A session is no use while the worker is silent or
  // makes no progress.
  virtual void ReadNext(bool wants_session) = 0;
  virtual void Refuse() = 0;  // The last, a registration, is of no use: the Watch ends.
};

// One open Session to a worker. Lives as long as the core holds it.
class SessionWriter {
 public:
  virtual ~SessionWriter() = default;
  virtual void Send(const RouterCommand& command) = 0;  // Never blocks.
  virtual void ReadNext() = 0;                          // The last StepBatch has been dealt with.
  virtual void Close() = 0;
};

inline constexpr size_t kMaxShownLost = 16;

// What a front end, a probe or a scrape wants to know. Any thread, a copy.
struct FleetView {
  struct Worker {
    WorkerRegistration registration;
    std::string address;
    bool healthy = false;
    bool draining = false;
    bool connected = false;  // Has a session.
  };
  std::vector<Worker> workers;
  bool known_completely = false;
  // Somebody healthy is there to decode the served model: no prefill worker left alone.
  bool can_decode = false;
  size_t num_decoding = 0;  // Workers of the served model that decode, healthy or not.
  std::vector<std::string> awaited;
  std::vector<LostWorker> lost;  // The first of them, at most kMaxShownLost...
  size_t num_lost = 0;           // ...of so many.
  // Prompt and output that the largest of the served model's workers holds; 0 while some are not
  // known.
  int64_t max_model_tokens = 0;
  std::string numerics_id;  // The decoding workers' one; the first by name, where they differ.
  int64_t requests_in_flight = 0;
};

struct RouterCoreOptions {
  RequestOwnerOptions owner;
  std::string model;                          // As workers register it; others serve nothing here.
  int32_t max_model_tokens = INT32_MAX;       // The model's own context: no worker's is longer.
  std::vector<std::string> expected_workers;  // The static list; empty behind a DNS name.
  size_t max_queued_commands = 4096;
};

class RouterCore final : public RouterOutbox {
 public:
  using Handle = uint64_t;  // Names a request, from before its start on.

  // Starts the thread. Everything borrowed outlives it.
  static absl::StatusOr<std::unique_ptr<RouterCore>> Create(const RouterCoreOptions& options,
                                                            const Clock* clock,
                                                            RouterMetrics* metrics);
  ~RouterCore() override;  // Stop().

  // ---- From front ends. Any thread. ----

  Handle NewHandle() { return next_handle_.fetch_add(1, std::memory_order_relaxed); }
  // `sink` is kept until its end; it hears OnError if the request is not accepted. asked.sink is
  // the core's.
  struct NewRequest {
    Handle handle = 0;
    ClientRequest asked;
    std::shared_ptr<RequestSink> sink;
  };
  // All of a call, in one command: the queue has room for all of them or refuses the call. `label`
  // is the client's id, for logs.
  void StartRequests(std::string label, std::vector<NewRequest> requests);
  // Those of a call that run; in one command, too, so that no call is worth more than another.
  void CancelRequests(std::vector<Handle> handles);
  FleetView View() const EXCLUDES(view_mu_);
  // FleetView's, without the copy.
  int64_t max_model_tokens() const { return max_model_tokens_.load(std::memory_order_relaxed); }

  // Brings the metrics up to everything that was delivered before, then calls `done`, on the
  // router's thread; on the caller's once that has ended.
  void PublishThen(std::function<void()> done);

  // ---- From worker channels. Any thread. ----

  // Where a worker is expected from now on, as a DNS name says; of a static list the options tell.
  void OnExpected(std::set<std::string> addresses);
  // Each Watch and Session has one message here at a time. `holding` is what it is charged to, if
  // that is more than a little.
  using Holding = std::shared_ptr<MemoryBudget::Holding>;
  void OnWatchUpdate(const std::string& address, const WorkerId& worker, WatchUpdate update,
                     std::shared_ptr<WatchReader> watch, Holding holding = nullptr);
  void OnWatchLost(const std::string& address, const WorkerId& worker);
  void OnSessionUp(const WorkerId& worker, SessionId session,
                   std::shared_ptr<SessionWriter> writer);
  void OnStepBatch(SessionId session, StepBatch batch, Holding holding = nullptr);
  void OnSessionLost(SessionId session);

  // What is called for a new Watch of a worker; set before the first worker is heard.
  void SetRestartWatch(std::function<void(const WorkerId&)> restart_watch) {
    restart_watch_ = std::move(restart_watch);
  }

  // The router itself ends its workers' connections from now on: none is told as lost.
  void BeginLeave() { leaving_ = true; }
  // Ends the thread; requests that still run are Unavailable.
  void Stop();

 private:
  struct StartCommand {
    std::string label;
    std::vector<NewRequest> requests;
    int64_t posted_us;
  };
  struct CancelCommand {
    std::vector<Handle> handles;
  };
  struct PublishCommand {
    std::function<void()> done;
  };
  struct ExpectedCommand {
    std::set<std::string> addresses;
  };
  struct WatchCommand {
    std::string address;
    WorkerId worker;
    WatchUpdate update;
    std::shared_ptr<WatchReader> watch;
    Holding holding;
  };
  struct WatchLostCommand {
    std::string address;
    WorkerId worker;
  };
  struct SessionUpCommand {
    WorkerId worker;
    SessionId session;
    std::shared_ptr<SessionWriter> writer;
  };
  struct StepCommand {
    SessionId session;
    StepBatch batch;
    Holding holding;
  };
  struct SessionLostCommand {
    SessionId session;
  };
  using Command =
      std::variant<StartCommand, CancelCommand, PublishCommand, ExpectedCommand, WatchCommand,
                   WatchLostCommand, SessionUpCommand, StepCommand, SessionLostCommand>;

  // Forwards to the front end's sink and notes the end.
  class EndingSink;
  struct Running {
    RequestId id;
    std::unique_ptr<EndingSink> sink;
  };

  RouterCore(const RouterCoreOptions& options, const Clock* clock, RouterMetrics* metrics);

  void Run();
  void Do(StartCommand command);
  void Do(const CancelCommand& command);
  void Do(PublishCommand command);
  void Do(ExpectedCommand command);
  void Do(const WatchCommand& command);
  void Do(WatchLostCommand command);
  void Do(SessionUpCommand command);
  void Do(const StepCommand& command);
  void Do(SessionLostCommand command);
  void DropEnded();
  void PublishView();
  void TellOfChanges(const std::vector<LostWorker>& lost);
  // What was neither the client's doing nor an overload is told within kMaxFailureLines, the rest
  // at debug level.
  void LogEnd(Handle handle, const std::string& label, const absl::Status& status,
              const RequestReport& report);

  // Refused, of all requests so far.
  int64_t NumWithoutRoom() const;
  // At most once a second.
  void TellOfNoRoom();

  void SendSubmit(SessionId session, const Submit& submit) override;
  void SendCancel(SessionId session, const Cancel& cancel) override;
  void CloseSession(SessionId session, std::string_view why) override;
  void RestartWatch(const WorkerId& worker) override;

  const std::string model_;
  const int32_t model_context_;
  const RequestOwnerOptions limits_;
  const Clock* const clock_;
  RouterMetrics* const metrics_;
  std::function<void(const WorkerId&)> restart_watch_;
  std::unique_ptr<RequestOwner> owner_;  // Router thread.
  BoundedQueue<Command> commands_;
  std::atomic<uint64_t> next_handle_{1};
  std::atomic<bool> leaving_{false}, stopping_{false};
  std::atomic<int64_t> max_model_tokens_{0};

  // ---- Router thread ----
  std::map<Handle, Running> running_;
  std::vector<Handle> ended_;
  int64_t failure_lines_until_us_ = 0;  // The end of the present second...
  int failure_lines_ = 0;               // ...so many were wanted.
  int64_t next_no_room_line_us_ = 0;
  std::map<SessionId, std::shared_ptr<SessionWriter>> sessions_;
  std::set<std::string> refused_;  // Addresses: each is logged once.
  FleetChanges changes_;
  bool fleet_changed_ = false;  // Since UnpairedWorkers was last asked.

  mutable Mutex view_mu_;
  FleetView view_ GUARDED_BY(view_mu_);

  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_ROUTER_CORE_H_
