#include "runtime/base/periodic_thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

#include "runtime/base/check.h"

namespace tandem {

PeriodicThread::PeriodicThread(const char* name, std::chrono::milliseconds rest,
                               std::function<void()> work)
    : rest_(rest), work_(std::move(work)) {
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  // Faults of its own would end the process before anybody could say where.
  for (const int fault : {SIGBUS, SIGFPE, SIGILL, SIGSEGV}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  thread_ = std::thread([this, name] {
    TANDEM_CHECK(pthread_setname_np(pthread_self(), name) == 0) << name;
    while (Rest()) work_();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void PeriodicThread::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  stop_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

bool PeriodicThread::Rest() {
  const auto end = std::chrono::steady_clock::now() + rest_;
  MutexLock lock(&mu_);
  while (!stopping_ && stop_.WaitUntil(&mu_, end)) {
  }
  return !stopping_;
}

}  // namespace tandem
