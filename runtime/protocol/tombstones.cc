#include "runtime/protocol/tombstones.h"

#include "runtime/base/guard.h"

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

}  // namespace tandem
