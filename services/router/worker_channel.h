// One worker's address: a channel with a Watch and, once the core has taken the registration, a
// Session. Where the core refuses it (the worker is watched at another address, say) neither stays.
//
// Whatever breaks is dialled again after a short pause, so that a worker that was restarted is back
// within a second; what never stands for a second is dialled four times a second at most, however
// well it begins. The channel outlives the worker's incarnations: what it reports carries the
// incarnation that said it. A worker that makes no progress has no session until its Watch tells
// of some, and is dialled then, after the same pause.
//
// A worker is believed, but not trusted with this process's memory: of each call one message is
// here at a time, measured before it is parsed, and charged if it is large. A Watch begins with a
// registration and has no other.

#ifndef TANDEM_SERVICES_ROUTER_WORKER_CHANNEL_H_
#define TANDEM_SERVICES_ROUTER_WORKER_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/fleet_secret.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "runtime/protocol/pause.h"
#include "services/router/router_core.h"
#include "services/server/fleet_auth.h"
#include "services/server/fleet_tls.h"
#include "tandem/v1/worker.grpc.pb.h"

namespace tandem {

struct WorkerChannelOptions {
  std::string router_name;
  double liveness_scale = 1;
  FleetSecret secret;
  const FleetTls* tls = nullptr;    // Outlives the channel; null: in the clear.
  MemoryBudget* budget = nullptr;   // Outlives the channel.
  int64_t first_pause_us = 20'000;  // Before dialling again; doubles up to...
  int64_t max_pause_us = 250'000;
};

class WorkerChannel : public std::enable_shared_from_this<WorkerChannel> {
 public:
  // `core`, `next_session` and what `wake` touches are not used once Close has returned. `wake` is
  // called from any thread, under the channel's lock, when Tend has something to do.
  WorkerChannel(std::string address, const WorkerChannelOptions& options, RouterCore* core,
                std::atomic<SessionId>* next_session, std::function<void()> wake);
  ~WorkerChannel();

  // Dials what is due; returns when to call again. The tending thread.
  int64_t Tend(int64_t now_us) EXCLUDES(mu_);
  // Ends the Watch, which is dialled again: its snapshot is wanted. Any thread.
  void RestartWatch() EXCLUDES(mu_);
  // Ends everything for good. Returns once no call will report any more. The tending thread.
  void Close() EXCLUDES(mu_);

  const std::string& address() const { return address_; }
  // The worker that registered last; empty name: none has.
  WorkerId worker() const EXCLUDES(mu_);
  // A Watch has answered and stands.
  bool connected() const EXCLUDES(mu_);
  // Everything lives until `done`; the answer is to be measured (wire_message.h).
  void Control(grpc::ClientContext* context, const v1::ControlRequest* request,
               grpc::ByteBuffer* answer, std::function<void(grpc::Status)> done) const
      EXCLUDES(mu_);
  // The proof that a call of `method` carries. While this lives.
  FleetCall Prove(std::string_view method, grpc::ClientContext* context) const EXCLUDES(mu_) {
    return {&options_.secret, wire(), address_, method, context};
  }

 private:
  template <typename Request>
  class Call;
  class Watch;
  class Session;

  struct Dialling {
    explicit Dialling(const WorkerChannelOptions& options)
        : first_pause_us(options.first_pause_us), max_pause_us(options.max_pause_us) {}
    bool Due(int64_t now_us);

    const int64_t first_pause_us, max_pause_us;
    Pause pause;
    int64_t dialled_us = 0;
    bool answered = false;  // The last call was good for something.
    bool ended = false;     // And is over.
    bool refused = false;   // The core has no use for it, or it said what it must not.
  };

  std::shared_ptr<grpc::Channel> wire() const EXCLUDES(mu_);
  // What is dialled from now on has the certificates that the fleet has now.
  void FollowCertificates() REQUIRES(mu_);
  // Says once that nobody registers here. When to ask again.
  int64_t TellUnheard(int64_t now_us) REQUIRES(mu_);

  // From the calls' reactions.
  // Not OK: the Watch has no business saying that.
  absl::Status OnWatchUpdate(Watch* watch, WatchUpdate update, RouterCore::Holding holding)
      EXCLUDES(mu_);
  // What it said has been taken: at first the registration.
  void OnWatchAccepted(Watch* watch, bool wants_session) EXCLUDES(mu_);
  void OnWatchRefused(Watch* watch) EXCLUDES(mu_);
  void OnWatchDone(Watch* watch, const absl::Status& why) EXCLUDES(mu_);
  void OnSessionOpen(Session* session, uint64_t incarnation) EXCLUDES(mu_);
  // By the core, which may also refuse it: a worker that is stalled, say.
  void OnSessionAccepted(Session* session) EXCLUDES(mu_);
  void OnSessionRefused() EXCLUDES(mu_);
  void OnSessionDone(Session* session, const absl::Status& why) EXCLUDES(mu_);
  // Reads what has come, within bounds.
  template <typename Message>
  absl::Status Receive(grpc::ByteBuffer* wire, Message* message,
                       RouterCore::Holding* holding) const;

  const std::string address_;
  const WorkerChannelOptions options_;
  RouterCore* const core_;
  std::atomic<SessionId>* const next_session_;
  const std::function<void()> wake_;

  mutable Mutex mu_;
  uint64_t tls_changes_ GUARDED_BY(mu_) = 0;
  std::shared_ptr<grpc::Channel> wire_ GUARDED_BY(mu_);
  CondVar idle_;
  std::shared_ptr<Watch> watch_ GUARDED_BY(mu_);  // Both are kept until their end.
  std::shared_ptr<Session> session_ GUARDED_BY(mu_);
  WorkerId worker_ GUARDED_BY(mu_);
  bool registered_ GUARDED_BY(mu_) = false;       // By the present Watch.
  bool wants_session_ GUARDED_BY(mu_) = false;    // As the core said last of it.
  int num_refusals_ GUARDED_BY(mu_) = 0;          // Watches since that were refused.
  int64_t unheard_since_us_ GUARDED_BY(mu_) = 0;  // 0: it is registered, or was never tended.
  bool told_unheard_ GUARDED_BY(mu_) = false;
  std::string why_unheard_ GUARDED_BY(mu_);  // Why the last Watch ended.
  Dialling watch_dialling_ GUARDED_BY(mu_);
  Dialling session_dialling_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_WORKER_CHANNEL_H_
