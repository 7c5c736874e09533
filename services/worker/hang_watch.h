// Tells what hangs from what is slow: nothing of it has moved for a minute, and somebody has looked
// all the while.

#ifndef TANDEM_SERVICES_WORKER_HANG_WATCH_H_
#define TANDEM_SERVICES_WORKER_HANG_WATCH_H_

#include <cstdint>

#include "runtime/protocol/times.h"

namespace tandem {

// So many times LivenessTimes::engine_stalled_us, a minute, is longer than anything healthy stands:
// on a CPU work shows many times in a layer, and on a GPU a step, which shows once, is the time
// that max_batched_tokens take, tens of milliseconds. Routers have moved its streams long before.
inline constexpr int64_t kHungStalls = 30;

// Counts looks instead of asking a clock: a process that was stopped for an hour has not hung. One
// thread.
class HangWatch {
 public:
  explicit HangWatch(const LivenessTimes& times)
      : look_us_(times.heartbeat_us), hung_us_(kHungStalls * times.engine_stalled_us) {}

  // At every heartbeat. True if it stood at all the looks of that time.
  bool Look(bool stands) {
    looks_ = stands ? looks_ + 1 : 0;
    return stood_us() >= hung_us_;
  }
  int64_t stood_us() const { return looks_ * look_us_; }

 private:
  const int64_t look_us_, hung_us_;
  int64_t looks_ = 0;  // In a row.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_HANG_WATCH_H_
