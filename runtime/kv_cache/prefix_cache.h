// Finished blocks by the name of their prefix, so that a prompt that begins like an earlier one
// starts where the shared part ends.
//
// Sharing by hashed blocks follows vLLM's prefix caching; leaves go before the prefixes they hang
// on (RadixAttention, Zheng et al., 2024), least recently used first. A name is in the cache at
// most once; token ids are compared on a hit, so that a collision is a miss.
//
// Engine thread only. Deterministic.

#ifndef TANDEM_RUNTIME_KV_CACHE_PREFIX_CACHE_H_
#define TANDEM_RUNTIME_KV_CACHE_PREFIX_CACHE_H_

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/kv_cache/block_hash.h"
#include "runtime/kv_cache/block_pool.h"
#include "runtime/kv_cache/kv_events.h"
#include "runtime/kv_cache/kv_window.h"

namespace tandem {

// Where a sequence stands in its chain of names.
struct PrefixCursor {
  BlockHash name;         // The last named block's; the root before the first.
  bool collided = false;  // Another prefix has one of these names: nothing more is cached.
};

struct NamedBlock {
  BlockHash name;
  BlockId block = 0;
};

// No block that a window leaves behind is kept.
inline constexpr int32_t kKeepNone = std::numeric_limits<int32_t>::max();

using BlockHasher = BlockHash (*)(const BlockHash& parent, std::span<const int32_t> tokens);

class PrefixCache final : public IdleBlocks {
 public:
  struct Options {
    int32_t block_tokens = kHashTokens;  // In a pool block; a multiple of kHashTokens.
    int64_t window = 0;                  // KvWindow::tokens.
    bool enabled = true;                 // Otherwise nothing matches and nothing is kept.
    BlockHasher hasher = &HashBlock;     // Tests bring one that collides.
  };
  // Attaches itself to the pool, which outlives it and is used no more afterwards.
  PrefixCache(const Options& options, BlockPool* pool);

  struct Hit {
    std::vector<BlockId> blocks;  // From the first on; kNoBlock where the window has left them
                                  // behind, else the caller owns one reference on each.
    PrefixCursor cursor;          // After these blocks.
  };
  // The longest beginning of token_ids, in whole blocks, after which the next token finds all that
  // it sees cached: with a window not the blocks before that, unless they are `keep_from` or later.
  // Pass only the tokens that may be served from the cache (never a prompt's last one). `names`
  // are those that were found before, for the same root and tokens or fewer, and those found now:
  // who looks again and again hashes each block once.
  Hit Match(const BlockHash& root, std::span<const int32_t> token_ids,
            int32_t keep_from = kKeepNone, std::vector<BlockHash>* names = nullptr);
  // How many blocks Match would give; changes nothing.
  int32_t CountMatch(const BlockHash& root, std::span<const int32_t> token_ids,
                     int32_t keep_from = kKeepNone, std::vector<BlockHash>* names = nullptr) const;

  // Names a full block, whose KV is computed or verified and never changes again. `tokens` are its
  // block_tokens ids; the caller holds a reference. Goes on from `cursor` and moves it on. Where
  // the name is taken already the older block stays, and this one remains its holder's alone. Of
  // kNoBlock the cursor moves on, and nothing has the name.
  void Append(PrefixCursor* cursor, std::span<const int32_t> tokens, BlockId block);

  int32_t num_entries() const { return static_cast<int32_t>(entries_.size()); }

  // ---- For routers ----
  // The net change since the last call, numbered on from there.
  KvEvents TakeEvents();
  // All names as of the last TakeEvents, so that the next events follow on it.
  KvEvents Snapshot() const;

  // Internal, naming the block, if cache and pool disagree.
  absl::Status Audit() const;
  std::vector<NamedBlock> NamedBlocks() const;  // All, by block.

  // IdleBlocks, for the pool.
  void OnIdle(BlockId block) override;
  void OnBusy(BlockId block) override;
  void EvictOne() override;

 private:
  struct Entry {
    BlockHash name;
    BlockHash parent;
    std::vector<int32_t> tokens;
    uint64_t idle_since = 0;  // 0: not idle.
  };
  // Leaves first, then least recently used.
  struct EvictionKey {
    bool has_children = false;
    uint64_t idle_since = 0;
    BlockId block = 0;
    auto operator<=>(const EvictionKey&) const = default;
  };

  BlockHash NameOf(const BlockHash& parent, std::span<const int32_t> tokens) const;
  // The block of that name if its tokens are the same; kNoBlock otherwise.
  BlockId Find(const BlockHash& name, const BlockHash& parent,
               std::span<const int32_t> tokens) const;
  // Match, without the references.
  Hit Look(const BlockHash& root, std::span<const int32_t> token_ids, int32_t keep_from,
           std::vector<BlockHash>* names) const;
  EvictionKey KeyOf(BlockId block) const;
  void AddChild(const BlockHash& parent, int32_t by);
  void RecordEvent(const BlockHash& name, bool stored);

  const Options options_;
  const KvWindow window_;
  BlockPool* const pool_;
  std::vector<Entry> entries_by_block_;               // Indexed by block; valid where named.
  absl::flat_hash_map<BlockHash, BlockId> entries_;   // Never iterated.
  absl::flat_hash_map<BlockHash, int32_t> children_;  // Cached children of a name, cached or not.
  std::set<EvictionKey> idle_;
  uint64_t clock_ = 0;                 // Counts OnIdle.
  std::set<BlockHash> published_;      // As of the last TakeEvents.
  std::map<BlockHash, bool> pending_;  // Net change since: stored or removed.
  uint64_t next_sequence_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_KV_CACHE_PREFIX_CACHE_H_
