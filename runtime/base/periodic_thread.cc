#include "runtime/base/periodic_thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace tandem {

PeriodicThread::PeriodicThread(const char* name, std::chrono::milliseconds rest,
                               std::function<void()> work)
    : rest_(rest), work_(std::move(work)) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), name);
}

void PeriodicThread::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  stop_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

void PeriodicThread::Run() {
  while (Rest()) work_();
}

bool PeriodicThread::Rest() {
  const auto end = std::chrono::steady_clock::now() + rest_;
  MutexLock lock(&mu_);
  while (!stopping_ && stop_.WaitUntil(&mu_, end)) {
  }
  return !stopping_;
}

}  // namespace tandem
