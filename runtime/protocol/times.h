// The one table of times (docs/protocol.md). --liveness-scale multiplies all of them, for slow
// sanitizer runs. Microseconds.

#ifndef TANDEM_RUNTIME_PROTOCOL_TIMES_H_
#define TANDEM_RUNTIME_PROTOCOL_TIMES_H_

#include <cstdint>
#include <initializer_list>

namespace tandem {

inline constexpr double kMinLivenessScale = 0.05, kMaxLivenessScale = 1000;
inline constexpr char kLivenessScaleHelp[] =  // What --liveness-scale does.
    "multiplies every time-out between processes, for slow machines";

struct LivenessTimes {
  int64_t heartbeat_us = 200'000;
  int64_t no_new_work_after_us = 1'000'000;   // A worker has been silent for so long.
  int64_t move_streams_after_us = 2'000'000;  // A worker has been silent, or made no progress.
  int64_t lease_us = 3'000'000;               // Also a reservation's.
  int64_t renew_us = 500'000;
  int64_t link_stalled_us = 10'000'000;   // Frames under way, but none arrives.
  int64_t first_pause_us = 1'000'000;     // Without a peer whose transfers fail; doubles...
  int64_t max_pause_us = 30'000'000;      // ...up to this. So does a worker's whose steps fail.
  int64_t engine_stalled_us = 2'000'000;  // Work, but no progress stamp.
  int64_t quarantine_us = 10'000'000;     // Too large or in the way: replace the worker.

  static LivenessTimes Scaled(double scale) {
    LivenessTimes t;
    for (int64_t* time : {&t.heartbeat_us, &t.no_new_work_after_us, &t.move_streams_after_us,
                          &t.lease_us, &t.renew_us, &t.link_stalled_us, &t.first_pause_us,
                          &t.max_pause_us, &t.engine_stalled_us, &t.quarantine_us}) {
      *time = static_cast<int64_t>(static_cast<double>(*time) * scale);
    }
    return t;
  }
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_TIMES_H_
