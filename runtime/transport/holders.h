// Counts what others hold of an object, whose destructor waits for them.

#ifndef TANDEM_RUNTIME_TRANSPORT_HOLDERS_H_
#define TANDEM_RUNTIME_TRANSPORT_HOLDERS_H_

#include <chrono>
#include <cstdint>
#include <string_view>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"

namespace tandem {

// Any thread.
class Holders {
 public:
  // One of them, while it lives.
  class Hold {
   public:
    explicit Hold(Holders* holders) : holders_(holders) { holders_->Change(1); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() { holders_->Change(-1); }

   private:
    Holders* const holders_;
  };

  // Returns once there are none, however long it takes: what they touch is there till then. Who
  // cannot wait for it ends the process. A warning, once, says that `transport` waits.
  void WaitForNone(std::string_view transport) EXCLUDES(mu_) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    MutexLock lock(&mu_);
    while (count_ > 0 && changed_.WaitUntil(&mu_, late)) {
    }
    if (count_ == 0) return;
    LogWarning("what moves KV blocks has not let go of the pool yet, and is waited for",
               {{"transport", transport}, {"held", count_}});
    while (count_ > 0) changed_.Wait(&mu_);
  }

 private:
  void Change(int64_t by) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    count_ += by;
    changed_.SignalAll();  // With the lock: who waits destroys this.
  }

  Mutex mu_;
  CondVar changed_;
  int64_t count_ GUARDED_BY(mu_) = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_HOLDERS_H_
