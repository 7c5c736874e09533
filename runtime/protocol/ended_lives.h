// How earlier lives of a worker ended. Whoever supervises its processes sees that, tells the next
// life of the same name, and that life tells routers when it registers.

#ifndef TANDEM_RUNTIME_PROTOCOL_ENDED_LIVES_H_
#define TANDEM_RUNTIME_PROTOCOL_ENDED_LIVES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

enum class EndCause : uint8_t {
  kOutside,  // A signal that no process sends itself by failing, or an end of its own: no
             // request's.
  kCrash,    // What it computed may have done it.
  kMemory,   // The kernel took it because memory had run out: so may this.
};

struct EndedLife {
  uint64_t incarnation = 0;
  EndCause cause = EndCause::kOutside;
  bool operator==(const EndedLife&) const = default;
};

// Lives may end faster than they register; older ones than these are nobody's concern any more.
inline constexpr size_t kMaxEndedLives = 64;

// The exit status of a worker that asks for another process in its place, through no request's
// fault.
inline constexpr int kExitToBeReplaced = 3;

std::string_view EndCauseName(EndCause cause);  // "outside", "crash", "memory"

// "INCARNATION:CAUSE,...", as on a worker's command line. InvalidArgument quotes what is not so, or
// says how many there are where at most kMaxEndedLives may be.
std::string FormatEndedLives(std::span<const EndedLife> lives);
absl::StatusOr<std::vector<EndedLife>> ParseEndedLives(std::string_view text);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_ENDED_LIVES_H_
