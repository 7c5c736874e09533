// A pause after a failure, twice as long each time in a row (binary exponential back-off; Metcalfe
// and Boggs, 1976). A value; microseconds.

#ifndef TANDEM_RUNTIME_PROTOCOL_PAUSE_H_
#define TANDEM_RUNTIME_PROTOCOL_PAUSE_H_

#include <algorithm>
#include <cstdint>

namespace tandem {

struct Pause {
  int64_t until_us = 0;
  int64_t length_us = 0;  // How long the last one was; 0 once something has worked.

  bool Holds(int64_t now_us) const { return now_us < until_us; }

  // 0 < first_us <= most_us. False during a pause: what failed was under way before it.
  bool Begin(int64_t first_us, int64_t most_us, int64_t now_us) {
    if (Holds(now_us)) return false;
    length_us = std::clamp(2 * length_us, first_us, most_us);
    until_us = now_us + length_us;
    return true;
  }
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_PAUSE_H_
