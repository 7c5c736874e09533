// The way from a client's call to its generation, which a text thread starts meanwhile.

#ifndef TANDEM_SERVICES_ROUTER_GENERATION_SLOT_H_
#define TANDEM_SERVICES_ROUTER_GENERATION_SLOT_H_

#include <memory>
#include <utility>

#include "runtime/base/mutex.h"
#include "services/router/generation.h"

namespace tandem {

// Thread-safe.
class GenerationSlot {
 public:
  // The client is gone, or has its answer: what runs ends, and what has not begun need not.
  void Leave() EXCLUDES(mu_) {
    std::shared_ptr<Generation> generation;
    {
      MutexLock lock(&mu_);
      left_ = true;
      generation = generation_;
    }
    if (generation != nullptr) generation->Detach();
  }

  bool left() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return left_;
  }

  // Once. Ends it if the client has left meanwhile.
  void Set(std::shared_ptr<Generation> generation) EXCLUDES(mu_) {
    bool left = false;
    {
      MutexLock lock(&mu_);
      generation_ = generation;
      left = left_;
    }
    if (left) generation->Detach();
  }

  // Null until Set.
  std::shared_ptr<Generation> Get() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return generation_;
  }

 private:
  Mutex mu_;
  std::shared_ptr<Generation> generation_ GUARDED_BY(mu_);
  bool left_ GUARDED_BY(mu_) = false;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_GENERATION_SLOT_H_
