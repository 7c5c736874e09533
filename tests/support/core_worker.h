// What a test needs to be a worker of a RouterCore.

#ifndef TANDEM_TESTS_SUPPORT_CORE_WORKER_H_
#define TANDEM_TESTS_SUPPORT_CORE_WORKER_H_

#include <future>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "services/router/router_core.h"

namespace tandem {

class CountingWatch final : public WatchReader {
 public:
  void ReadNext(bool wants_session) override { wanted = wants_session; }
  void Refuse() override { ++num_refused; }

  // Router thread, or after Flush().
  int num_refused = 0;
  bool wanted = false;  // A session, the last time.
};

// Keeps what the core sends to a worker.
class RecordingSession final : public SessionWriter {
 public:
  void Send(const RouterCommand& command) override {
    if (const auto* submit = std::get_if<Submit>(&command)) submits.push_back(*submit);
    if (const auto* cancel = std::get_if<Cancel>(&command)) cancels.push_back(*cancel);
  }
  void ReadNext() override { ++num_reads; }
  void Close() override { closed = true; }

  // Router thread, or after Flush().
  std::vector<Submit> submits;
  std::vector<Cancel> cancels;
  int num_reads = 0;
  bool closed = false;
};

// Everything posted before has been done when it returns.
inline void Flush(RouterCore& core) {
  std::promise<void> done;
  core.PublishThen([&done] { done.set_value(); });
  done.get_future().wait();
}

// A worker that the core knows all of, and may use.
inline void ConnectWorker(RouterCore& core, const WorkerRegistration& registration, SessionId id,
                          std::shared_ptr<SessionWriter> session) {
  const auto watch = std::make_shared<CountingWatch>();
  const WorkerId& worker = registration.worker;
  core.OnWatchUpdate("w:1", worker, registration, watch);
  core.OnWatchUpdate("w:1", worker, KvEvents{.first_sequence = 0, .snapshot = true}, watch);
  core.OnSessionUp(worker, id, std::move(session));
  Flush(core);
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_CORE_WORKER_H_
