#include "runtime/protocol/ended_lives.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace tandem {

namespace {

std::optional<EndCause> CauseNamed(std::string_view name) {
  for (const EndCause cause : {EndCause::kOutside, EndCause::kCrash, EndCause::kMemory}) {
    if (EndCauseName(cause) == name) return cause;
  }
  return std::nullopt;
}

}  // namespace

std::string_view EndCauseName(EndCause cause) {
  switch (cause) {
    case EndCause::kOutside:
      return "outside";
    case EndCause::kCrash:
      return "crash";
    case EndCause::kMemory:
      return "memory";
  }
  return "";
}

std::string FormatEndedLives(std::span<const EndedLife> lives) {
  std::string text;
  for (const EndedLife& life : lives) {
    const std::string cause(EndCauseName(life.cause));
    absl::StrAppend(&text, text.empty() ? "" : ",", life.incarnation, ":", cause);
  }
  return text;
}

absl::StatusOr<std::vector<EndedLife>> ParseEndedLives(std::string_view text) {
  std::vector<EndedLife> lives;
  if (text.empty()) return lives;
  const std::vector<std::string> entries = absl::StrSplit(std::string(text), ',');
  for (const std::string& entry : entries) {
    const size_t colon = entry.find(':');
    const std::optional<EndCause> cause =
        colon == entry.npos ? std::nullopt : CauseNamed(entry.substr(colon + 1));
    EndedLife life;
    if (!cause.has_value() || !absl::SimpleAtoi(entry.substr(0, colon), &life.incarnation) ||
        life.incarnation == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "\"%s\", want INCARNATION:CAUSE where CAUSE is outside, crash or memory", entry));
    }
    life.cause = *cause;
    lives.push_back(life);
  }
  if (lives.size() > kMaxEndedLives) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d lives, at most %d", lives.size(), kMaxEndedLives));
  }
  return lives;
}

}  // namespace tandem
