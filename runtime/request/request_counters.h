// What a request owner counts since its start; the service exports it as metrics.

#ifndef TANDEM_RUNTIME_REQUEST_REQUEST_COUNTERS_H_
#define TANDEM_RUNTIME_REQUEST_REQUEST_COUNTERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/routing/routing_policy.h"

namespace tandem {

// Why a stream went on as another attempt (label of tandem_stream_resumes_total).
enum class ResumeReason : uint8_t {
  kSessionLost,    // The connection broke: worker died, or the network did.
  kRestarted,      // The worker came back as another incarnation.
  kSilent,         // No heartbeat for move_streams_after_us.
  kStalled,        // Heartbeats, but no progress.
  kDraining,       // The worker was asked to stop.
  kTransferLost,   // Its prefill worker or the KV transfer was lost.
  kProtocolError,  // The worker said what it must not.
  kStepFailed,     // The step that computed it failed as a whole.
};
inline constexpr size_t kNumResumeReasons = 8;

// How a request ended (label of tandem_requests_total).
enum class RequestOutcome : uint8_t {
  kDone,
  kCancelled,
  kDeadlineExceeded,
  kUnavailable,
  kResourceExhausted,
  kInvalidArgument,
  kPoison,    // Internal: its workers kept dying.
  kInternal,  // Any other error.
};
inline constexpr size_t kNumRequestOutcomes = 8;

std::string_view ResumeReasonName(ResumeReason reason);       // "session_lost"
std::string_view RequestOutcomeName(RequestOutcome outcome);  // "done"
RequestOutcome OutcomeOf(const absl::Status& error);          // But for kPoison.

struct RequestCounters {
  std::array<uint64_t, kNumResumeReasons> resumes{};
  std::array<uint64_t, kNumRequestOutcomes> outcomes{};
  // Attempts sent to workers, by what decided; each without and with a prefill worker.
  std::array<std::array<uint64_t, 2>, kNumRouteReasons> routes{};
  uint64_t refusals = 0;                // Attempts that workers refused.
  uint64_t stale_events = 0;            // From earlier attempts or incarnations, or repeated.
  uint64_t protocol_errors = 0;         // Positions ahead of what is next, and the like.
  uint64_t determinism_violations = 0;  // A position computed twice, with two results.

  uint64_t attempts() const {
    uint64_t sum = 0;
    for (const auto& route : routes) sum += route[0] + route[1];
    return sum;
  }
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_REQUEST_COUNTERS_H_
