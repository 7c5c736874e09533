// The worker's KV blocks: who holds each, and what a transport may still do to it.
//
// A block has references (sequences and transfers that hold it), pins (transport operations that
// may still read or write it) and perhaps a name in the prefix cache. Its state follows:
//
//   quarantined  pinned, no reference      in_flight  pinned and referenced
//   held         referenced                cached     only named: evictable
//   free         none of these
//
// So a block whose owner goes away while a transport still uses it is in quarantine by itself and
// leaves it with its last pin: only completion frees. Each time a block becomes free its
// next life begins. Everything is deterministic: the block freed last is allocated first.
//
// Engine thread only. Asking for a block id outside the pool, or taking away a reference or a pin
// that is not there, is a bug of the caller and stops the process.

#ifndef TANDEM_RUNTIME_KV_CACHE_BLOCK_POOL_H_
#define TANDEM_RUNTIME_KV_CACHE_BLOCK_POOL_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/kv_cache/kv_events.h"

namespace tandem {

using BlockId = int32_t;

// In a sequence's table, of a block that it does not hold: no token to come reads it.
inline constexpr BlockId kNoBlock = -1;

enum class BlockState : uint8_t { kFree, kHeld, kCached, kInFlight, kQuarantined };

// Keeps named blocks that nobody holds and gives them up when the pool runs dry. PrefixCache is
// one.
class IdleBlocks {
 public:
  virtual ~IdleBlocks() = default;
  virtual void OnIdle(BlockId block) = 0;  // Named, and the last reference and pin went.
  virtual void OnBusy(BlockId block) = 0;  // Was idle; now referenced or pinned.
  // Takes the name off the idle block that is missed least (BlockPool::SetCached). Called only
  // while one is idle.
  virtual void EvictOne() = 0;
};

// Is told of every block that becomes free, before anybody can be given it.
class FreedBlocks {
 public:
  virtual ~FreedBlocks() = default;
  virtual void OnFreed(BlockId block) = 0;
};

// A copyable value while nobody is attached (the transfer explorer copies it).
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  // Once, before the first block is named; outlives the pool's use.
  void AttachIdleBlocks(IdleBlocks* idle_blocks);
  // Once; outlives the pool's use.
  void AttachFreedBlocks(FreedBlocks* freed_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  // Free or evictable: what Allocate can give.
  int32_t num_available() const {
    return static_cast<int32_t>(free_.size()) +
           static_cast<int32_t>(counts_[static_cast<size_t>(BlockState::kCached)]);
  }

  // n blocks with one reference each, evicting cached ones as needed; all or none:
  // ResourceExhausted if fewer are available.
  absl::StatusOr<std::vector<BlockId>> Allocate(int32_t n);

  void AddReference(BlockId block);
  void Release(BlockId block);                    // Takes one reference away.
  void Release(std::span<const BlockId> blocks);  // Last first: leaves age before their prefix.

  // A transport operation on the block begins or has ended for certain.
  void Pin(BlockId block);
  void Unpin(BlockId block);

  // Copy-on-write. True if only the caller can see the block: it may be written in place.
  // Otherwise the caller allocates another, has the content copied, and releases its reference on
  // this one only after the copy has run.
  bool Exclusive(BlockId block) const;

  // For the prefix cache: gives the block its name, or takes it away.
  void SetCached(BlockId block, bool cached);
  bool cached(BlockId block) const { return At(block).cached; }

  BlockState state(BlockId block) const;
  int32_t references(BlockId block) const { return At(block).references; }
  int32_t pins(BlockId block) const { return At(block).pins; }
  uint32_t life(BlockId block) const { return At(block).life; }
  BlockCounts Counts() const;  // O(1).

  // Internal, naming the block, if any invariant is broken. O(blocks).
  absl::Status Audit() const;

  // Appends bytes that are equal for pools that will behave alike (which lives they are in does not
  // count).
  void AppendState(std::string* bytes) const;

 private:
  struct Block {
    int32_t references = 0;
    int32_t pins = 0;
    uint32_t life = 1;
    bool cached = false;
    bool in_free_list = true;
  };
  const Block& At(BlockId block) const;
  Block& At(BlockId block);
  static BlockState StateOf(const Block& block);
  // Applies `change` and brings the counts, the free list and the idle blocks up to date.
  template <typename Change>
  void Update(BlockId id, Change change);

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;
  int64_t counts_[5] = {};  // By BlockState.
  IdleBlocks* idle_blocks_ = nullptr;
  FreedBlocks* freed_blocks_ = nullptr;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_KV_CACHE_BLOCK_POOL_H_
