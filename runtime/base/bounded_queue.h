// A bounded multi-producer queue into one consumer thread (the engine's or the router's commands).
//
// TryPush refuses when full, so a flood is answered ResourceExhausted instead of growing memory.
// PushAlways is for what must never be refused (cancellations, completions, lost peers): their
// number is bounded by what was admitted before. Close ends both, so that nothing is left behind
// when the consumer goes.

#ifndef TANDEM_RUNTIME_BASE_BOUNDED_QUEUE_H_
#define TANDEM_RUNTIME_BASE_BOUNDED_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"

namespace tandem {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False if the queue holds `capacity` items or is closed; `item` is then untouched.
  bool TryPush(T&& item) EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.Signal();
    return true;
  }

  // False only if the queue is closed; `item` is then dropped.
  bool PushAlways(T item) EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (closed_) return false;
      items_.push_back(std::move(item));
    }
    ready_.Signal();
    return true;
  }

  // Nothing gets in any more. Returns what was still there.
  std::vector<T> Close() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    closed_ = true;
    return std::exchange(items_, {});
  }

  // Wakes a waiting consumer without an item.
  void Wake() EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      woken_ = true;
    }
    ready_.Signal();
  }

  // Takes everything, in order of arrival. Never waits.
  std::vector<T> Drain() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return std::exchange(items_, {});
  }

  // Waits until there is an item, a Wake() or `timeout`. Takes nothing.
  void WaitFor(std::chrono::microseconds timeout) EXCLUDES(mu_) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(&mu_);
    while (items_.empty() && !woken_ && ready_.WaitUntil(&mu_, end)) {
    }
    woken_ = false;
  }

  size_t size() const EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable Mutex mu_;
  CondVar ready_;
  std::vector<T> items_ GUARDED_BY(mu_);
  bool woken_ GUARDED_BY(mu_) = false;
  bool closed_ GUARDED_BY(mu_) = false;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_BOUNDED_QUEUE_H_
