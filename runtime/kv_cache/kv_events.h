// What a worker tells others about its blocks.

#ifndef TANDEM_RUNTIME_KV_CACHE_KV_EVENTS_H_
#define TANDEM_RUNTIME_KV_CACHE_KV_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/kv_cache/block_hash.h"

namespace tandem {

// Every block is in exactly one state; they add up to `total`.
struct BlockCounts {
  int64_t free = 0;
  int64_t held = 0;
  int64_t cached = 0;       // In the prefix cache, held by no sequence.
  int64_t in_flight = 0;    // A transport may still read or write them.
  int64_t quarantined = 0;  // In flight, and their owner is gone.
  int64_t total = 0;
  bool operator==(const BlockCounts&) const = default;
};

// Blocks that entered or left the worker's prefix cache since event number `first_sequence`.
struct KvEvents {
  uint64_t first_sequence = 0;  // The number of the first of stored, then removed.
  bool snapshot = false;        // `stored` replaces all that was known.
  std::vector<BlockHash> stored;
  std::vector<BlockHash> removed;
  bool operator==(const KvEvents&) const = default;

  // Nothing has changed.
  bool empty() const { return !snapshot && stored.empty() && removed.empty(); }
};

// The same in pieces of at most `max_hashes`, in order: who applies them one after the other is as
// far as who applies the whole.
std::vector<KvEvents> SplitEvents(const KvEvents& events, size_t max_hashes);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_KV_CACHE_KV_EVENTS_H_
