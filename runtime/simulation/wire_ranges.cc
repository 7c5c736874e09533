#include "runtime/simulation/wire_ranges.h"

#include "absl/strings/str_format.h"

namespace tandem {
namespace {

std::string Negative(const char* field, int64_t value) {
  return value < 0 ? absl::StrFormat("%s = %d", field, value) : std::string();
}

std::string Of(const RequestSpec& spec) { return std::string(Validate(spec, {}).message()); }

std::string OfEnd(const absl::Status& status) { return status.ok() ? "OK as an end" : ""; }

std::string Of(const PromptEvent& e) { return Negative("cached_tokens", e.cached_tokens); }
std::string Of(const TokenEvent& e) {
  if (e.choice < 0 || e.choice >= kMaxChoices) return absl::StrFormat("choice = %d", e.choice);
  return Negative("position", e.position);
}
std::string Of(const RefusedEvent& e) {
  std::string what = OfEnd(e.status);
  return what.empty() ? Negative("retry_after_us", e.retry_after_us) : what;
}
std::string Of(const EndedEvent& e) { return OfEnd(e.status); }
std::string Of(const AbortReply&) { return ""; }

std::string Of(const PrefillSubmit& m) {
  const absl::Status blocks = ValidateBlocks(m);
  return blocks.ok() ? Of(m.spec) : std::string(blocks.message());
}
std::string Of(const Grant& m) { return m.reservation.generation == 0 ? "generation = 0" : ""; }
std::string Of(const Resend& m) { return Negative("ordinal", m.ordinal); }
std::string Of(const Committed&) { return ""; }
std::string Of(const PrefillCancel& m) { return Negative("time_left_us", m.time_left_us); }
std::string Of(const Renew&) { return ""; }

std::string Of(const Start& m) { return Negative("cached_tokens", m.cached_tokens); }
std::string Of(const PrefillRefused& m) {
  std::string what = OfEnd(m.status);
  return what.empty() ? Negative("retry_after_us", m.retry_after_us) : what;
}
std::string Of(const Progress&) { return ""; }
std::string Of(const FirstToken& m) { return m.tokens.empty() ? "no first token" : ""; }
std::string Of(const Done& m) { return Negative("num_frames", m.num_frames); }

template <typename Variant>
std::string OfAny(const Variant& message) {
  return std::visit([](const auto& m) { return Of(m); }, message);
}

}  // namespace

std::string OutOfRange(const Submit& submit) {
  std::string what = Negative("disaggregate_from_tokens", submit.disaggregate_from_tokens);
  return what.empty() ? Of(submit.spec) : what;
}
std::string OutOfRange(const Cancel& cancel) {
  return Negative("time_left_us", cancel.time_left_us);
}
std::string OutOfRange(const RouterEvent& event) { return OfAny(event); }
std::string OutOfRange(const ChunkBegun& chunk) {
  if (chunk.end_position <= chunk.first_position) {
    return absl::StrFormat("positions [%d, %d)", chunk.first_position, chunk.end_position);
  }
  return Negative("first_position", chunk.first_position);
}
std::string OutOfRange(const WorkerRegistration& registration) {
  if (registration.ended_lives.size() > kMaxEndedLives) {
    return absl::StrFormat("%d ended lives", registration.ended_lives.size());
  }
  for (const EndedLife& life : registration.ended_lives) {
    if (life.incarnation == 0) return "an ended life without a number";
  }
  return "";
}
std::string OutOfRange(const DecodeToPrefill& message) { return OfAny(message); }
std::string OutOfRange(const PrefillToDecode& message) { return OfAny(message); }

}  // namespace tandem
