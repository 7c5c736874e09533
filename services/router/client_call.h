// A client's call, over HTTP or gRPC, from its last byte to its last output. It waits for a
// text thread, which parses and starts it; then its front end takes outputs; until the
// client has its answer, or is gone.

#ifndef TANDEM_SERVICES_ROUTER_CLIENT_CALL_H_
#define TANDEM_SERVICES_ROUTER_CLIENT_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"
#include "services/router/call_starter.h"
#include "services/router/generate_request.h"
#include "services/router/running_call.h"
#include "services/router/text_pool.h"

namespace tandem {

// Thread-safe. Held by its front end, and by what is on its way to it.
class ClientCall : public std::enable_shared_from_this<ClientCall> {
 public:
  virtual ~ClientCall() = default;

  // Once: has a thread of `pool` begin it, as a body of `bytes`.
  void Post(TextPool* pool, size_t bytes);

  // The oldest outputs, at most so many. A call that is refused has one, which tells why.
  std::vector<CallOutput> Take(size_t most = SIZE_MAX) EXCLUDES(mu_);
  // The client is gone, or has its answer: what runs ends, and what has not begun need not.
  void Leave() EXCLUDES(mu_);
  // As RunningCall's.
  bool overflowed() const EXCLUDES(mu_);
  void KeepAnswer(int64_t bytes) EXCLUDES(mu_);

 protected:
  // `starter` outlives this. on_output of `call` is set here.
  ClientCall(CallStarter* starter, CallStarter::Call call)
      : starter_(starter), call_(std::move(call)) {}

  // On a text thread, once; not if the client has left. What it reads is needed no more after it.
  virtual absl::StatusOr<GenerateRequest> Parse() = 0;
  // Before any output of it is taken.
  virtual void OnBegun(const GenerateRequest& request, const RunningCall& running) = 0;
  // There is something to take. Any thread; must not block. May come once more after Leave.
  virtual void OnOutput() = 0;

  CallStarter* starter() const { return starter_; }
  // Null until it has begun.
  std::shared_ptr<RunningCall> running() const EXCLUDES(mu_);

 private:
  void Begin() EXCLUDES(mu_);
  absl::Status TryBegin() EXCLUDES(mu_);
  void Refuse(const absl::Status& why) EXCLUDES(mu_);

  CallStarter* const starter_;
  CallStarter::Call call_;  // Until it has begun.

  mutable Mutex mu_;
  std::shared_ptr<RunningCall> running_ GUARDED_BY(mu_);  // Once it has begun.
  std::optional<absl::Status> refused_ GUARDED_BY(mu_);   // Until that is taken.
  bool left_ GUARDED_BY(mu_) = false;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_CLIENT_CALL_H_
