// How much of ours may be at one worker at once: what it was seen to take, and one more from time
// to time (additive increase, after TCP's congestion avoidance; Jacobson, 1988).
//
// A refusal costs the worker, the router and the network a whole prompt, so a full worker is asked
// again ever more rarely, and not before the time that it named.

#ifndef TANDEM_RUNTIME_FLEET_WORK_WINDOW_H_
#define TANDEM_RUNTIME_FLEET_WORK_WINDOW_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace tandem {

// One thread.
class WorkWindow {
 public:
  WorkWindow() = default;  // No limit until the first refusal.
  // `size` to begin with; 0: the worker does not say what it can do, as above.
  explicit WorkWindow(int32_t size) {
    if (size > 0) size_ = size;
  }

  // `in_use`: what we have there. A worker without any of ours may be asked for anything, but not
  // before it has had time to end some of others'.
  bool HasRoom(int32_t in_use, int32_t more, int64_t now_us) const {
    return in_use == 0 ? now_us >= empty_until_us_ : more <= size_ - in_use;
  }

  // It took `in_use` and refused one more, and names the time after which it may take it (0: none).
  void OnRefused(int32_t in_use, int64_t retry_after_us, int64_t heartbeat_us, int64_t now_us) {
    size_ = std::max(1, in_use);
    const int64_t named_us = retry_after_us > 0 ? retry_after_us : heartbeat_us;
    if (in_use == 0) {
      empty_until_us_ = now_us + std::min(named_us, kMaxEmptyHeartbeats * heartbeat_us);
    }
    if (now_us < hold_until_us_) return;  // One of many that were on their way.
    patience_us_ = std::clamp(2 * patience_us_, heartbeat_us, kMaxHeartbeats * heartbeat_us);
    hold_until_us_ =
        now_us + std::max(patience_us_, std::min(named_us, kMaxHeartbeats * heartbeat_us));
    tried_ = false;
  }

  void OnHeartbeat(int32_t in_use, int64_t now_us) {
    if (now_us < hold_until_us_ || in_use < size_) return;
    if (std::exchange(tried_, true)) patience_us_ = 0;  // The last one was taken.
    ++size_;
  }

  int32_t size() const { return size_; }

 private:
  static constexpr int64_t kMaxHeartbeats = 32;
  static constexpr int64_t kMaxEmptyHeartbeats = 5;

  int32_t size_ = std::numeric_limits<int32_t>::max();
  int64_t empty_until_us_ = 0;
  int64_t hold_until_us_ = 0;  // Does not grow before.
  int64_t patience_us_ = 0;    // Of the last hold.
  bool tried_ = false;         // It has grown since the last refusal.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_FLEET_WORK_WINDOW_H_
