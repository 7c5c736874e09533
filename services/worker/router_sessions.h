// The Sessions of routers with this worker.

#ifndef TANDEM_SERVICES_WORKER_ROUTER_SESSIONS_H_
#define TANDEM_SERVICES_WORKER_ROUTER_SESSIONS_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <set>
#include <span>
#include <vector>

#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "services/server/convert.h"
#include "services/worker/command_queue.h"
#include "services/worker/stream_reactor.h"

namespace tandem {

class RouterSessions {
 public:
  // The pointers outlive this. `prompts`: stream_reactor.h.
  RouterSessions(uint64_t incarnation, OpenCalls* calls, MemoryBudget* prompts,
                 CommandQueue* commands)
      : incarnation_(incarnation), calls_(calls), prompts_(prompts), commands_(commands) {}

  // The reactor of a new RPC.
  ServerReactor<proto::StepBatch>* Open(grpc::CallbackServerContext* context);

  // Sends one step's events to one router. Never blocks; a session that is gone drops them, one
  // whose router does not read is closed, which ends its attempts: the router resumes them
  // elsewhere. Engine thread.
  void Publish(SessionId session, const StepBatch& batch);

  std::vector<SessionId> ids() const;  // The open ones.
  // Waits until what was published to these sessions is with the kernel, or they are gone, or for
  // `limit`: a session that was not done by then is not waited for again until it has caught up.
  // Engine thread.
  void WaitUntilWritten(std::span<const SessionId> sessions, std::chrono::microseconds limit)
      EXCLUDES(written_mu_);

  bool Flushed() const;  // Nothing waits to be written.
  void CloseAll(const absl::Status& why);

 private:
  class Session;

  // Whether gRPC, and whether the kernel has what was published.
  bool Sent(SessionId session);
  bool Written(SessionId session);
  void AskGate(SessionId session);
  void OnWritten() EXCLUDES(written_mu_);

  const uint64_t incarnation_;
  OpenCalls* const calls_;
  MemoryBudget* const prompts_;
  CommandQueue* const commands_;
  StreamRegistry<Session> sessions_;
  Mutex written_mu_;  // Orders the look at what is unwritten and the word that something was.
  CondVar written_;
  std::set<SessionId> late_;  // Engine thread only.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_ROUTER_SESSIONS_H_
