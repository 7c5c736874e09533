// The Sessions of routers with this worker.

#ifndef TANDEM_SERVICES_WORKER_ROUTER_SESSIONS_H_
#define TANDEM_SERVICES_WORKER_ROUTER_SESSIONS_H_

#include <grpcpp/grpcpp.h>

#include <map>

#include "runtime/base/mutex.h"
#include "services/server/convert.h"
#include "services/worker/engine_command.h"

namespace tandem {

// A session that falls this many steps behind is closed, which ends its attempts; the router
// resumes them elsewhere.
inline constexpr size_t kMaxUnsentSteps = 1024;

class RouterSessions {
 public:
  // `commands` outlives this. Token ids are in [0, vocab_size).
  RouterSessions(uint64_t incarnation, int64_t vocab_size, CommandQueue* commands)
      : incarnation_(incarnation), vocab_size_(vocab_size), commands_(commands) {}

  // The reactor of a new RPC.
  grpc::ServerBidiReactor<proto::ToWorker, proto::StepBatch>* Open() EXCLUDES(mu_);

  // Sends one step's events to one router. Never blocks; a session that is gone drops them. Engine
  // thread.
  void Publish(SessionId session, const StepBatch& batch) EXCLUDES(mu_);

  // Nothing waits to be written.
  bool Flushed() const EXCLUDES(mu_);
  void CloseAll(const absl::Status& why) EXCLUDES(mu_);

 private:
  class Session;
  void Remove(SessionId session) EXCLUDES(mu_);

  const uint64_t incarnation_;
  const int64_t vocab_size_;
  CommandQueue* const commands_;
  mutable Mutex mu_;
  SessionId next_session_ GUARDED_BY(mu_) = 1;
  std::map<SessionId, Session*> sessions_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_ROUTER_SESSIONS_H_
