// What many want and few have at a time, in the order in which they asked.

#ifndef TANDEM_RUNTIME_TRANSPORT_NCCL_TURNS_H_
#define TANDEM_RUNTIME_TRANSPORT_NCCL_TURNS_H_

#include <chrono>
#include <list>
#include <optional>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "runtime/base/mutex.h"

namespace tandem {

// Any thread.
class Turns {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // One of them, while it lives.
  class Turn {
   public:
    Turn(Turn&& other) noexcept
        : turns_(std::exchange(other.turns_, nullptr)), number_(other.number_) {}
    Turn& operator=(Turn&& other) noexcept {
      std::swap(turns_, other.turns_);
      std::swap(number_, other.number_);
      return *this;
    }
    ~Turn() {
      if (turns_ != nullptr) turns_->GiveBack(number_);
    }
    // From 0 on; nobody else has the same at this time.
    int number() const { return number_; }

   private:
    friend class Turns;
    Turn(Turns* turns, int number) : turns_(turns), number_(number) {}

    Turns* turns_;
    int number_;
  };

  explicit Turns(int num_at_a_time) {
    for (int i = 0; i < num_at_a_time; ++i) free_.insert(i);
  }

  // Nothing: nobody `wants` it any more, which is asked under the lock of this and after each
  // Wake, or the time is over.
  std::optional<Turn> Take(Time until, absl::FunctionRef<bool()> wants) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    const auto mine = queue_.emplace(queue_.end());
    bool in_time = true;
    while (wants() && in_time && (free_.empty() || queue_.begin() != mine)) {
      in_time = changed_.WaitUntil(&mu_, until);
    }
    const bool has = wants() && !free_.empty() && queue_.begin() == mine;
    queue_.erase(mine);
    changed_.SignalAll();  // The next one is first.
    if (!has) return std::nullopt;
    return Turn(this, free_.extract(free_.begin()).value());
  }
  // Somebody may want it no more.
  void Wake() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    changed_.SignalAll();
  }

 private:
  struct Waiting {};

  void GiveBack(int number) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    free_.insert(number);
    changed_.SignalAll();
  }

  Mutex mu_;
  CondVar changed_;
  std::set<int> free_ GUARDED_BY(mu_);
  std::list<Waiting> queue_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_TURNS_H_
