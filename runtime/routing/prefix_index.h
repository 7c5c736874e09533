// Which worker holds which prefix, from the workers' own events: block hash → workers.
//
// Memory is bounded: past max_entries hashes the oldest are forgotten, which costs a recomputation
// somewhere and nothing else. A hash has at most one holder for each worker that is here, however
// often it says it. A worker that dies takes its entries with it at once (they carry its epoch;
// their memory is swept bit by bit afterwards).
//
// One thread, every method.

#ifndef TANDEM_RUNTIME_ROUTING_PREFIX_INDEX_H_
#define TANDEM_RUNTIME_ROUTING_PREFIX_INDEX_H_

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/kv_cache/block_hash.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/router_messages.h"

namespace tandem {

class PrefixIndex {
 public:
  // About what an entry takes that one to four workers hold.
  static constexpr int64_t kEntryBytes = 128;

  explicit PrefixIndex(int64_t max_entries) : max_entries_(max_entries) {}

  // A Watch begins. What an earlier life of the worker held is void. `block_tokens` is a multiple
  // of kHashTokens: only every (block_tokens / kHashTokens)-th hash of a chain names a block of it.
  void AddWorker(const WorkerId& worker, int32_t block_tokens);
  void RemoveWorker(const WorkerId& worker);

  // False: events are missing in between. All that was known of the worker is then void until its
  // next snapshot, which a new Watch brings; said once. Events of an unknown incarnation are
  // ignored (true).
  bool Apply(const WorkerId& worker, const KvEvents& events);

  // Tokens of `chain` (HashChain of a prompt) held from its start on, by worker name; workers with
  // none are absent.
  std::map<std::string, int32_t> LongestPrefixes(std::span<const BlockHash> chain) const;

  int64_t num_entries() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Holder {
    uint32_t source = 0;
    uint32_t epoch = 0;
  };
  struct Source {
    std::string name;
    uint64_t incarnation = 0;
    uint32_t epoch = 0;  // Holders of another epoch are void.
    bool used = false;
    bool synchronised = false;  // A snapshot, and every event since.
    bool gap_told = false;      // Apply has returned false.
    uint64_t next_sequence = 0;
    int32_t stride = 1;  // Hashes a block.
  };

  bool Valid(const Holder& holder) const {
    return sources_[holder.source].used && sources_[holder.source].epoch == holder.epoch;
  }
  void Store(uint32_t source, const BlockHash& hash);
  void Remove(uint32_t source, const BlockHash& hash);
  // Looks at up to `count` of the oldest entries: forgets void ones, requeues the others.
  void Sweep(int64_t count);
  void ForgetOldest();

  const int64_t max_entries_;
  absl::flat_hash_map<BlockHash, std::vector<Holder>> entries_;
  std::deque<BlockHash> order_;  // Names every entry exactly once, oldest first.
  int64_t to_sweep_ = 0;
  std::vector<Source> sources_;
  std::map<std::string, uint32_t> source_of_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ROUTING_PREFIX_INDEX_H_
