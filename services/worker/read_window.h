// How far a peer's stream is read ahead of the engine.
//
// What the engine never refuses (cancellations, grants, renewals) waits in its queue, however long
// its step takes. So the next message of a stream is read only while less than kBytes of those
// before it wait there: all that waits is bounded by the streams that are open, each of which is
// charged for its window from the start. It holds some two hundred commands, so that no peer that
// behaves is held up for a step.

#ifndef TANDEM_SERVICES_WORKER_READ_WINDOW_H_
#define TANDEM_SERVICES_WORKER_READ_WINDOW_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status_macros.h"
#include "services/worker/command_queue.h"

namespace tandem {

// Any thread. Outlived by the commands that it has let through.
class ReadWindow : public std::enable_shared_from_this<ReadWindow> {
 public:
  static constexpr int64_t kBytes = int64_t{128} << 10;

  // `read` starts the stream's next read; it is called on any thread, under the lock of this, and
  // never while a read is under way. What exceeds the window is charged to `client`.
  ReadWindow(MemoryBudget* budget, std::string client, std::function<void()> read)
      : budget_(budget), client_(std::move(client)), read_(std::move(read)) {}

  // For a message that goes to the engine, until that has taken it. ResourceExhausted, with the
  // numbers, if one alone is more than the window and there is no room.
  template <typename Message>
  absl::StatusOr<CommandCharge> Admit(const Message& message) {
    return AdmitBytes(static_cast<int64_t>(sizeof(EngineCommand) + message.SpaceUsedLong()));
  }
  absl::StatusOr<CommandCharge> AdmitBytes(int64_t bytes) EXCLUDES(mu_) {
    std::shared_ptr<MemoryBudget::Holding> more;
    if (bytes > kBytes) {
      TANDEM_ASSIGN_OR_RETURN(more, budget_->Hold(client_, bytes - kBytes));
    }
    MutexLock lock(&mu_);
    waiting_bytes_ += bytes;
    return CommandCharge(
        this, [self = shared_from_this(), more, bytes](const void*) { self->Taken(bytes); });
  }

  // The last message has been dealt with: reads the next one, now or once there is room.
  void ReadNext() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    due_ = true;
    ReadIfRoom();
  }

  // No read begins any more.
  void Close() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    closed_ = true;
  }
  // The stream is over: reads no longer wait for the engine, so that it is seen.
  void Lift() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    lifted_ = true;
    ReadIfRoom();
  }

 private:
  void Taken(int64_t bytes) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    waiting_bytes_ -= bytes;
    ReadIfRoom();
  }
  void ReadIfRoom() REQUIRES(mu_) {
    if (!due_ || closed_ || (waiting_bytes_ >= kBytes && !lifted_)) return;
    due_ = false;
    read_();
  }

  MemoryBudget* const budget_;
  const std::string client_;
  const std::function<void()> read_;
  Mutex mu_;
  int64_t waiting_bytes_ GUARDED_BY(mu_) = 0;
  bool due_ GUARDED_BY(mu_) = false;  // A read, which waits for room.
  bool closed_ GUARDED_BY(mu_) = false;
  bool lifted_ GUARDED_BY(mu_) = false;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_READ_WINDOW_H_
