// Messages that wait for their turn on a stream: one write in flight, a bound on the rest.

#ifndef TANDEM_SERVICES_SERVER_WRITE_QUEUE_H_
#define TANDEM_SERVICES_SERVER_WRITE_QUEUE_H_

#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status_macros.h"

namespace tandem {

// So many messages may wait for a peer that does not read, where the budget has room for them: a
// worker of a small model says ten thousand a second, and a router on a busy machine may not run
// for that long.
inline constexpr size_t kMaxUnsentMessages = 1 << 16;

// `Reactor` is gRPC's, with StartWrite. It is finished (or its hold removed) only after Close. What
// waits or is being written is charged to `client` in the budget, beyond `free_bytes`; where that
// is in the way of somebody else's memory, `cut` is called, as MemoryBudget calls it: it cancels
// the call. A queue that is made `held` writes nothing before Open.
template <typename Reactor, typename Message>
class WriteQueue {
 public:
  WriteQueue(Reactor* reactor, MemoryBudget* budget, const std::string& client,
             std::function<void()> cut, bool held = false, int64_t free_bytes = 0)
      : reactor_(reactor),
        free_bytes_(free_bytes),
        holding_(budget, client, std::move(cut)),
        held_(held) {}

  void Open() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    held_ = false;
    WriteNext();
  }

  // ResourceExhausted if kMaxUnsentMessages wait already, or there is no room. A closed queue drops
  // the message.
  absl::Status Push(Message message) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (closed_) return absl::OkStatus();
    if (unsent_.size() >= kMaxUnsentMessages) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kMaxUnsentMessages, " messages wait to be read"));
    }
    TANDEM_RETURN_IF_ERROR(Charge(NumBytes(message)));
    unsent_.push_back(std::move(message));
    WriteNext();
    return absl::OkStatus();
  }

  void OnWriteDone(bool ok) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!closed_) Uncharge(NumBytes(current_));
    if (!ok) Drop();
    WriteNext();
  }

  // Drops what waits. True if a write is in flight: it ends when the peer reads, or the call does.
  bool Close() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    Drop();
    return writing_;
  }

  // Waiting or being written.
  size_t size() const EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return unsent_.size() + (writing_ ? 1 : 0);
  }

 private:
  void WriteNext() REQUIRES(mu_) {
    if (held_ || closed_ || writing_ || unsent_.empty()) return;
    writing_ = true;
    current_ = std::move(unsent_.front());
    unsent_.pop_front();
    // Done when the kernel has it, not when flow control has let it pass: somebody may wait for
    // that.
    reactor_->StartWrite(&current_, grpc::WriteOptions().set_write_through());
  }

  // In memory a message takes about twice what it takes on the wire.
  static int64_t NumBytes(const Message& message) {
    return static_cast<int64_t>(sizeof(message) + 2 * message.ByteSizeLong());
  }
  absl::Status Charge(int64_t more_bytes) REQUIRES(mu_) {
    const int64_t charged = std::max<int64_t>(unsent_bytes_ + more_bytes - free_bytes_, 0);
    TANDEM_RETURN_IF_ERROR(holding_.Set(charged));
    unsent_bytes_ += more_bytes;
    return absl::OkStatus();
  }
  void Uncharge(int64_t bytes) REQUIRES(mu_) { static_cast<void>(Charge(-bytes)); }
  void Drop() REQUIRES(mu_) {
    closed_ = true;
    unsent_.clear();
    Uncharge(unsent_bytes_);
  }

  Reactor* const reactor_;
  const int64_t free_bytes_;
  mutable Mutex mu_;
  MemoryBudget::Holding holding_ GUARDED_BY(mu_);
  std::deque<Message> unsent_ GUARDED_BY(mu_);
  int64_t unsent_bytes_ GUARDED_BY(mu_) = 0;
  Message current_ GUARDED_BY(mu_);
  bool held_ GUARDED_BY(mu_);
  bool writing_ GUARDED_BY(mu_) = false;
  bool closed_ GUARDED_BY(mu_) = false;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_WRITE_QUEUE_H_
