// Aborts that overtook their submit: the late submit must find them. One lives until the request's
// own deadline, after which a submit is refused for its deadline alone.

#ifndef TANDEM_RUNTIME_PROTOCOL_TOMBSTONES_H_
#define TANDEM_RUNTIME_PROTOCOL_TOMBSTONES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/guard.h"
#include "runtime/protocol/append_bytes.h"

namespace tandem {

// Engine thread only. Keyed by what the submit will call itself.
template <typename Key>
class Tombstones {
 public:
  // Past `max_entries` the one that would expire first goes.
  explicit Tombstones(int32_t max_entries) : max_entries_(max_entries) {}

  // False: past its deadline already, nothing was kept.
  bool Add(const Key& key, int64_t deadline_us, int64_t now_us) {
    if (deadline_us <= now_us) return false;
    const auto [entry, fresh] = deadlines_.try_emplace(key, deadline_us);
    if (!fresh) {
      by_deadline_.erase({entry->second, key});
      entry->second = deadline_us;
    }
    by_deadline_.insert({deadline_us, key});
    if (size() > max_entries_) EraseFirst();
    return true;
  }

  // May this submit run? Not if its abort has been here.
  bool Admits(const Key& key) const { return TANDEM_GUARD("tombstone", !deadlines_.contains(key)); }

  void Expire(int64_t now_us) {
    while (!by_deadline_.empty() && by_deadline_.begin()->first <= now_us) EraseFirst();
  }

  int32_t size() const { return static_cast<int32_t>(deadlines_.size()); }

  // Appends bytes that are equal for equal states; of keys without padding.
  void AppendState(std::string* bytes) const {
    for (const auto& [deadline_us, key] : by_deadline_) {
      AppendBytes(deadline_us, bytes);
      AppendBytes(key, bytes);
    }
  }

 private:
  void EraseFirst() {
    deadlines_.erase(by_deadline_.begin()->second);
    by_deadline_.erase(by_deadline_.begin());
  }

  int32_t max_entries_;
  std::map<Key, int64_t> deadlines_;
  std::set<std::pair<int64_t, Key>> by_deadline_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_TOMBSTONES_H_
