// A client's call, over HTTP or gRPC, from its last byte to its last news. It waits for a text
// thread, which parses it and starts its generation; then its front end takes news; until the
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
#include "services/router/generate_request.h"
#include "services/router/generation.h"
#include "services/router/generator.h"
#include "services/router/text_pool.h"

namespace tandem {

// Thread-safe. Held by its front end, and by what is on its way to it.
class ClientCall : public std::enable_shared_from_this<ClientCall> {
 public:
  virtual ~ClientCall() = default;

  // Once: has a thread of `pool` begin it, as a body of `bytes`.
  void Post(TextPool* pool, size_t bytes);

  // The oldest news, at most so many. A call that is refused has one, which tells why.
  std::vector<GenerationNews> Take(size_t most = SIZE_MAX) EXCLUDES(mu_);
  // The client is gone, or has its answer: what runs ends, and what has not begun need not.
  void Leave() EXCLUDES(mu_);
  // As of Generation.
  bool overflowed() const EXCLUDES(mu_);
  void KeepAnswer(int64_t bytes) EXCLUDES(mu_);

 protected:
  // `generator` outlives this. on_news of `call` is set here.
  ClientCall(Generator* generator, Generator::Call call)
      : generator_(generator), call_(std::move(call)) {}

  // On a text thread, once; not if the client has left. What it reads is needed no more after it.
  virtual absl::StatusOr<GenerateRequest> Parse() = 0;
  // Before any news of it is taken.
  virtual void OnBegun(const GenerateRequest& request, const Generation& generation) = 0;
  // There is something to take. Any thread; must not block. May come once more after Leave.
  virtual void OnNews() = 0;

  Generator* generator() const { return generator_; }
  // Null until it has begun.
  std::shared_ptr<Generation> generation() const EXCLUDES(mu_);

 private:
  void Begin() EXCLUDES(mu_);
  absl::Status TryBegin() EXCLUDES(mu_);
  void Refuse(const absl::Status& why) EXCLUDES(mu_);

  Generator* const generator_;
  Generator::Call call_;  // Until it has begun.

  mutable Mutex mu_;
  std::shared_ptr<Generation> generation_ GUARDED_BY(mu_);  // Once it has begun.
  std::optional<absl::Status> refused_ GUARDED_BY(mu_);     // Until that is taken.
  bool left_ GUARDED_BY(mu_) = false;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_CLIENT_CALL_H_
