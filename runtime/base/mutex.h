// std::mutex with clang's thread-safety annotations, so that -Wthread-safety knows the lock and
// TSan sees it.

#ifndef TANDEM_RUNTIME_BASE_MUTEX_H_
#define TANDEM_RUNTIME_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TANDEM_THREAD_ANNOTATION_(x) __attribute__((x))
#else
#define TANDEM_THREAD_ANNOTATION_(x)
#endif

// Abseil's legacy spellings mean the same; whichever header comes first, ours stay.
#undef GUARDED_BY
#undef PT_GUARDED_BY
#undef NO_THREAD_SAFETY_ANALYSIS

#define GUARDED_BY(mu) TANDEM_THREAD_ANNOTATION_(guarded_by(mu))
#define PT_GUARDED_BY(mu) TANDEM_THREAD_ANNOTATION_(pt_guarded_by(mu))
#define REQUIRES(...) TANDEM_THREAD_ANNOTATION_(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) TANDEM_THREAD_ANNOTATION_(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) TANDEM_THREAD_ANNOTATION_(acquire_capability(__VA_ARGS__))
#define RELEASE(...) TANDEM_THREAD_ANNOTATION_(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS TANDEM_THREAD_ANNOTATION_(no_thread_safety_analysis)

namespace tandem {

class TANDEM_THREAD_ANNOTATION_(capability("mutex")) Mutex {
 public:
  void Lock() ACQUIRE() { mu_.lock(); }
  void Unlock() RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class TANDEM_THREAD_ANNOTATION_(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ACQUIRE(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() RELEASE() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// Waits may wake spuriously: always call in a loop that tests the condition.
class CondVar {
 public:
  void Wait(Mutex* mu) REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False on timeout.
  bool WaitFor(Mutex* mu, std::chrono::microseconds timeout) REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    const bool signalled = cv_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }
  // The same.
  bool WaitUntil(Mutex* mu, std::chrono::steady_clock::time_point end) REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    const bool signalled = cv_.wait_until(lock, end) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_MUTEX_H_
