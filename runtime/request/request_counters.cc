#include "runtime/request/request_counters.h"

namespace tandem {

std::string_view ResumeReasonName(ResumeReason reason) {
  constexpr std::array<std::string_view, kNumResumeReasons> kNames = {
      "session_lost", "restarted",     "silent",         "stalled",
      "draining",     "transfer_lost", "protocol_error", "step_failed"};
  return kNames[static_cast<size_t>(reason)];
}

std::string_view RequestOutcomeName(RequestOutcome outcome) {
  constexpr std::array<std::string_view, kNumRequestOutcomes> kNames = {"done",
                                                                        "cancelled",
                                                                        "deadline_exceeded",
                                                                        "unavailable",
                                                                        "resource_exhausted",
                                                                        "invalid_argument",
                                                                        "poison",
                                                                        "internal"};
  return kNames[static_cast<size_t>(outcome)];
}

RequestOutcome OutcomeOf(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kCancelled:
      return RequestOutcome::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return RequestOutcome::kDeadlineExceeded;
    case absl::StatusCode::kUnavailable:
      return RequestOutcome::kUnavailable;
    case absl::StatusCode::kResourceExhausted:
      return RequestOutcome::kResourceExhausted;
    case absl::StatusCode::kInvalidArgument:
      return RequestOutcome::kInvalidArgument;
    default:
      return RequestOutcome::kInternal;
  }
}

}  // namespace tandem
