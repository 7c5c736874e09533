// A thread that does the same again and again, with a rest before each time.

#ifndef TANDEM_RUNTIME_BASE_PERIODIC_THREAD_H_
#define TANDEM_RUNTIME_BASE_PERIODIC_THREAD_H_

#include <chrono>
#include <functional>
#include <thread>

#include "runtime/base/mutex.h"

namespace tandem {

class PeriodicThread {
 public:
  // `name` is the thread's, a literal of at most 15 characters. `work` throws nothing. Signals are
  // for those who wait for them: this thread takes none but its own faults.
  PeriodicThread(const char* name, std::chrono::milliseconds rest, std::function<void()> work);
  ~PeriodicThread() { Stop(); }

  // Waits for work that has begun; none begins any more. May come again, by one thread at a time
  // that is not this one.
  void Stop() EXCLUDES(mu_);

 private:
  bool Rest() EXCLUDES(mu_);  // False: it was stopped.

  const std::chrono::milliseconds rest_;
  const std::function<void()> work_;
  Mutex mu_;
  CondVar stop_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last: uses the rest.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_PERIODIC_THREAD_H_
