#include "runtime/simulation/turns_judge.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace tandem {
namespace {

constexpr int32_t kMostOvertaken = 2;

}  // namespace

void TurnsJudge::OnAsked(uint64_t asked, const std::string& client, int32_t kind) {
  const bool only = kind >= 0 && std::none_of(open_.begin(), open_.end(), [&](const auto& entry) {
                      return entry.second.client == client;
                    });
  open_[asked] = {.client = client, .kind = kind, .only = only, .overtaken = {}};
}

std::string TurnsJudge::OnAttempt(uint64_t asked) {
  const auto found = open_.find(asked);
  if (found == open_.end() || !std::exchange(found->second.waits, false)) return "";
  const Request& goes = found->second;
  for (auto& [other, waits] : open_) {
    if (!waits.waits || !waits.only || waits.kind != goes.kind || waits.client == goes.client) {
      continue;
    }
    ++num_overtaken_;
    if (++waits.overtaken[goes.client] > kMostOvertaken) {
      return absl::StrFormat("request %d of client %s waits while %d of client %s go", other,
                             waits.client, waits.overtaken[goes.client], goes.client);
    }
  }
  return "";
}

}  // namespace tandem
