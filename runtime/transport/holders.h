// Counts what others hold of an object, whose destructor waits for them.

#ifndef TANDEM_RUNTIME_TRANSPORT_HOLDERS_H_
#define TANDEM_RUNTIME_TRANSPORT_HOLDERS_H_

#include <chrono>
#include <cstdint>

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

  // How many there are still, once there are none or the time is over.
  int64_t WaitForNone(std::chrono::steady_clock::duration patience) EXCLUDES(mu_) {
    const auto end = std::chrono::steady_clock::now() + patience;
    MutexLock lock(&mu_);
    while (count_ > 0 && std::chrono::steady_clock::now() < end) {
      changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
    }
    return count_;
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
