// How much of ours may be at one worker at once: what it was seen to take, and one more from time
// to time (additive increase, after TCP's congestion avoidance; Jacobson, 1988).
//
// A refusal costs the worker, the router and the network a whole prompt, so a full worker is asked
// again ever more rarely, and not before the time that it named.

#ifndef TANDEM_RUNTIME_FLEET_WORK_WINDOW_H_
#define TANDEM_RUNTIME_FLEET_WORK_WINDOW_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "runtime/protocol/pause.h"

namespace tandem {

// One thread.
class WorkWindow {
 public:
  explicit WorkWindow(int64_t size) : size_(size) {}  // To begin with.

  // For one more beside the `in_use` of ours. A worker without any may be asked for one, but not
  // before it has had time to end some of others'.
  bool HasRoom(int64_t in_use, int64_t now_us) const {
    return in_use == 0 ? now_us >= empty_until_us_ : in_use < size_;
  }

  // It took `in_use` and refused one more, and names the time after which it may take it (0: none).
  void OnRefused(int64_t in_use, int64_t retry_after_us, int64_t heartbeat_us, int64_t now_us) {
    size_ = std::max<int64_t>(1, in_use);
    const int64_t named_us = retry_after_us > 0 ? retry_after_us : heartbeat_us;
    if (in_use == 0) {
      empty_until_us_ = now_us + std::min(named_us, kMaxEmptyHeartbeats * heartbeat_us);
    }
    const int64_t most_us = kMaxHeartbeats * heartbeat_us;
    // Not if it is one of many that were on their way.
    if (!hold_.Begin(heartbeat_us, most_us, now_us)) return;
    hold_.until_us = std::max(hold_.until_us, now_us + std::min(named_us, most_us));
    grown_at_us_.reset();
  }

  void OnHeartbeat(int64_t in_use, int64_t heartbeat_us, int64_t now_us) {
    if (hold_.Holds(now_us) || in_use < size_) return;
    if (!grown_at_us_.has_value()) grown_at_us_ = now_us;
    // A refusal would have come by now: it takes more.
    if (now_us - *grown_at_us_ >= kAnswerHeartbeats * heartbeat_us) hold_.length_us = 0;
    ++size_;
  }

 private:
  static constexpr int64_t kMaxHeartbeats = 32;
  static constexpr int64_t kMaxEmptyHeartbeats = 5;
  static constexpr int64_t kAnswerHeartbeats = 5;

  int64_t size_;
  int64_t empty_until_us_ = 0;
  Pause hold_;                          // While it holds, size_ does not grow.
  std::optional<int64_t> grown_at_us_;  // For the first time since it was last refused.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_FLEET_WORK_WINDOW_H_
