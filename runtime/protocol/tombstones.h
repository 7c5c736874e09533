// Keys of work that may not run when a submit of it comes: an abort that overtook its submit, say.
// One lives until the request's own deadline, after which a submit is refused for that alone.

#ifndef TANDEM_RUNTIME_PROTOCOL_TOMBSTONES_H_
#define TANDEM_RUNTIME_PROTOCOL_TOMBSTONES_H_

#include <cstdint>
#include <string>

#include "runtime/base/expiry_queue.h"
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
    deadlines_.Set(key, deadline_us);
    if (size() > max_entries_) deadlines_.PopDue(kNeverUs);
    return true;
  }

  bool contains(const Key& key) const { return deadlines_.contains(key); }
  // May this submit run? Not if its abort has been here.
  bool Admits(const Key& key) const { return TANDEM_GUARD("tombstone", !contains(key)); }

  void Expire(int64_t now_us) {
    while (deadlines_.PopDue(now_us).has_value()) {
    }
  }

  int32_t size() const { return static_cast<int32_t>(deadlines_.size()); }

  // Appends bytes that are equal for equal states; of keys without padding.
  void AppendState(std::string* bytes) const {
    for (const auto& [deadline_us, key] : deadlines_.in_order()) {
      AppendBytes(deadline_us, bytes);
      AppendBytes(key, bytes);
    }
  }

 private:
  int32_t max_entries_;
  ExpiryQueue<Key> deadlines_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_TOMBSTONES_H_
