// Work that may not run when a submit of it comes: what has ended, of which a copy may be late, and
// what was aborted before it came. Either is remembered until its deadline; after it a submit is
// refused for that alone.

#ifndef TANDEM_RUNTIME_ENGINE_ENDED_KEYS_H_
#define TANDEM_RUNTIME_ENGINE_ENDED_KEYS_H_

#include <cstdint>
#include <string>

#include "runtime/base/guard.h"
#include "runtime/protocol/tombstones.h"

namespace tandem {

// Engine thread only.
template <typename Key>
class EndedKeys {
 public:
  EndedKeys() : ended_(kMaxEnded), aborted_(kMaxAborted) {}

  bool Ended(const Key& key) const { return !TANDEM_GUARD("ended_attempt", !ended_.contains(key)); }
  void AddEnded(const Key& key, int64_t until_us, int64_t now_us) {
    ended_.Add(key, until_us, now_us);
  }

  // May it run, as far as aborts go?
  bool Admits(const Key& key) const { return aborted_.Admits(key); }
  // It has not been here. False: it is past its deadline already, and nothing was kept.
  bool AddAborted(const Key& key, int64_t until_us, int64_t now_us) {
    return aborted_.Add(key, until_us, now_us);
  }

  void Expire(int64_t now_us) {
    aborted_.Expire(now_us);
    ended_.Expire(now_us);
  }

  // Appends bytes that are equal for equal states; of keys without padding.
  void AppendState(std::string* bytes) const {
    ended_.AppendState(bytes);
    bytes->push_back('|');
    aborted_.AppendState(bytes);
  }

 private:
  // Deadlines are the peers' word, memory is ours. More aborts than these overtake their submits
  // only while a peer misbehaves.
  static constexpr int32_t kMaxEnded = 1 << 18;
  static constexpr int32_t kMaxAborted = 1 << 16;

  Tombstones<Key> ended_;
  Tombstones<Key> aborted_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_ENDED_KEYS_H_
