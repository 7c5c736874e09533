// A link's on_lost: called at most once, and never after Clear() has returned.

#ifndef TANDEM_RUNTIME_TRANSPORT_LOST_CALLBACK_H_
#define TANDEM_RUNTIME_TRANSPORT_LOST_CALLBACK_H_

#include <utility>

#include "runtime/base/mutex.h"
#include "runtime/transport/kv_transport.h"

namespace tandem {

class LostCallbackOnce {
 public:
  explicit LostCallbackOnce(KvTransport::LostCallback callback) : callback_(std::move(callback)) {}

  // The callback must not destroy the link: it runs under this object's lock.
  void Call(const absl::Status& why) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (KvTransport::LostCallback callback = std::exchange(callback_, nullptr)) callback(why);
  }

  void Clear() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    callback_ = nullptr;
  }

 private:
  Mutex mu_;
  KvTransport::LostCallback callback_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_LOST_CALLBACK_H_
