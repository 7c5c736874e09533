// Monotonic time in microseconds. Pure folders never read a clock: they are handed `now_us`, in
// production from a SteadyClock, in simulation from virtual time.

#ifndef TANDEM_RUNTIME_BASE_CLOCK_H_
#define TANDEM_RUNTIME_BASE_CLOCK_H_

#include <cstdint>

namespace tandem {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowUs() const = 0;  // Monotonic; any thread.
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  int64_t NowUs() const override;
};

// Seconds since 1970, for what people and clients read; never for deadlines.
int64_t WallClockSeconds();

// The time of the machine's steady clock, to tell how long something took.
double SecondsNow();

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_CLOCK_H_
