// Points in time at which something keyed ends, without scanning everything for them.

#ifndef TANDEM_RUNTIME_BASE_EXPIRY_QUEUE_H_
#define TANDEM_RUNTIME_BASE_EXPIRY_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "runtime/base/math.h"

namespace tandem {

inline constexpr int64_t kNeverUs = std::numeric_limits<int64_t>::max();

// Points in time saturate: a peer may ask for any duration.
inline int64_t After(int64_t now_us, int64_t duration_us) {
  return CheckedAdd(now_us, duration_us).value_or(kNeverUs - 1);
}

template <typename Key>
class ExpiryQueue {
 public:
  // Sets or moves the time of `key`.
  void Set(const Key& key, int64_t at_us) {
    const auto [entry, inserted] = times_.try_emplace(key, at_us);
    if (!inserted) {
      queue_.erase({entry->second, key});
      entry->second = at_us;
    }
    queue_.insert({at_us, key});
  }

  void Remove(const Key& key) {
    const auto entry = times_.find(key);
    if (entry == times_.end()) return;
    queue_.erase({entry->second, key});
    times_.erase(entry);
  }

  // The earliest key whose time has come, taken out; nothing if there is none.
  std::optional<Key> PopDue(int64_t now_us) {
    if (queue_.empty() || queue_.begin()->first > now_us) return std::nullopt;
    const Key key = queue_.begin()->second;
    queue_.erase(queue_.begin());
    times_.erase(key);
    return key;
  }

  std::optional<int64_t> TimeOf(const Key& key) const {
    const auto entry = times_.find(key);
    if (entry == times_.end()) return std::nullopt;
    return entry->second;
  }

  size_t size() const { return times_.size(); }
  bool contains(const Key& key) const { return times_.contains(key); }
  // Time and key, earliest first.
  const std::set<std::pair<int64_t, Key>>& in_order() const { return queue_; }
  int64_t next_us() const { return queue_.empty() ? kNeverUs : queue_.begin()->first; }

 private:
  std::set<std::pair<int64_t, Key>> queue_;
  std::map<Key, int64_t> times_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_EXPIRY_QUEUE_H_
