#include "runtime/protocol/tombstones.h"

#include "runtime/base/guard.h"
#include "runtime/protocol/append_bytes.h"

namespace tandem {

bool Tombstones::Add(const AttemptId& attempt, int64_t deadline_us, int64_t now_us) {
  if (deadline_us <= now_us) return false;
  const auto [entry, fresh] = deadlines_.try_emplace(attempt, deadline_us);
  if (!fresh) {
    by_deadline_.erase({entry->second, attempt});
    entry->second = deadline_us;
  }
  by_deadline_.insert({deadline_us, attempt});
  if (size() > max_entries_) EraseFirst();
  return true;
}

bool Tombstones::Admits(const AttemptId& attempt) const {
  return TANDEM_GUARD("tombstone", !deadlines_.contains(attempt));
}

void Tombstones::Expire(int64_t now_us) {
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now_us) EraseFirst();
}

void Tombstones::EraseFirst() {
  deadlines_.erase(by_deadline_.begin()->second);
  by_deadline_.erase(by_deadline_.begin());
}

void Tombstones::AppendState(std::string* bytes) const {
  for (const auto& [deadline_us, attempt] : by_deadline_) {
    AppendBytes(deadline_us, bytes);
    AppendBytes(attempt.request.counter, bytes);
    AppendBytes(attempt.attempt, bytes);
  }
}

}  // namespace tandem
