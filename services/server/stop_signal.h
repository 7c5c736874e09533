// SIGTERM and SIGINT of a process that takes a while to start: loading, packing weights, opening a
// transport. A thread of its own hears them at any moment.

#ifndef TANDEM_SERVICES_SERVER_STOP_SIGNAL_H_
#define TANDEM_SERVICES_SERVER_STOP_SIGNAL_H_

#include <chrono>
#include <optional>
#include <thread>

#include "runtime/base/mutex.h"

namespace tandem {

class StopSignal {
 public:
  // Blocks both in this thread and in those that it starts from now on: make it before any other.
  // Until Serving, a signal ends the process at once, with status 0.
  StopSignal();
  ~StopSignal();

  // The process has something to end in order: from now on signals are for Wait.
  void Serving() EXCLUDES(mu_);

  // The process asks itself, as SIGTERM does once it serves. Asked while it starts, it ends in
  // order when it has started. Any thread.
  void Ask() EXCLUDES(mu_);

  // The last signal that has come since the last call, whatever came before it; 0 if none comes in
  // time. Without a time it waits for one.
  int Wait(std::optional<std::chrono::microseconds> timeout = std::nullopt) EXCLUDES(mu_);

 private:
  void Run() EXCLUDES(mu_);

  const int signals_;  // Descriptors: signalfd, and
  const int end_;      // eventfd, when the thread shall end.
  Mutex mu_;
  CondVar came_;
  bool serving_ GUARDED_BY(mu_) = false;
  int signal_ GUARDED_BY(mu_) = 0;  // Not yet told.
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_STOP_SIGNAL_H_
