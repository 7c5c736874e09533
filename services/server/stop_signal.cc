#include "services/server/stop_signal.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace tandem {
namespace {

int BlockedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

}  // namespace

StopSignal::StopSignal() : signals_(BlockedSignals()), end_(eventfd(0, EFD_CLOEXEC)) {
  TANDEM_CHECK(signals_ >= 0 && end_ >= 0) << "no descriptors for signals";
  thread_ = std::thread([this] { Run(); });
}

StopSignal::~StopSignal() {
  const uint64_t one = 1;
  TANDEM_CHECK(write(end_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(signals_);
  close(end_);
}

void StopSignal::Serving() {
  const MutexLock lock(&mu_);
  serving_ = true;
}

void StopSignal::Ask() {
  const MutexLock lock(&mu_);
  signal_ = SIGTERM;
  came_.Signal();
}

int StopSignal::Wait(std::optional<std::chrono::microseconds> timeout) {
  const MutexLock lock(&mu_);
  if (timeout.has_value()) {
    if (signal_ == 0) came_.WaitFor(&mu_, *timeout);  // Too early now and then, which is as good.
  } else {
    while (signal_ == 0) came_.Wait(&mu_);
  }
  return std::exchange(signal_, 0);
}

void StopSignal::Run() {
  pthread_setname_np(pthread_self(), "stop-signal");
  while (true) {
    std::array<pollfd, 2> ready = {{{.fd = signals_, .events = POLLIN, .revents = 0},
                                    {.fd = end_, .events = POLLIN, .revents = 0}}};
    poll(ready.data(), ready.size(), -1);
    if (ready[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_, &info, sizeof(info)) != sizeof(info)) continue;
    const auto number = static_cast<int>(info.ssi_signo);
    const MutexLock lock(&mu_);
    if (!serving_) {
      LogInfo("asked to stop while starting", {{"signal", number}});
      std::_Exit(0);  // Nothing is promised to anybody yet.
    }
    signal_ = number;
    came_.Signal();
  }
}

}  // namespace tandem
