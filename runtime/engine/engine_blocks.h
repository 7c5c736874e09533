// The engine's blocks: pool and prefix cache together, copy-on-write, checksums.
//
// A sequence's table holds one reference per block, but for blocks that the window has left
// behind: those are kNoBlock there. Full blocks whose tokens were computed or verified here get a
// name in the prefix cache.

#ifndef TANDEM_RUNTIME_ENGINE_ENGINE_BLOCKS_H_
#define TANDEM_RUNTIME_ENGINE_ENGINE_BLOCKS_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/engine/engine_sequence.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/transfer_blocks.h"
#include "runtime/kv_cache/block_pool.h"
#include "runtime/kv_cache/kv_events.h"
#include "runtime/kv_cache/kv_window.h"
#include "runtime/kv_cache/prefix_cache.h"
#include "runtime/kv_cache/step_limbo.h"
#include "runtime/scheduler/block_source.h"

namespace tandem {

// What accounts for the pool's counts of references, by block; for audits.
struct BlockOwners {
  std::map<BlockId, int32_t> references;
  std::map<BlockId, int32_t> pins;
};

// Engine thread only.
class EngineBlocks final : public BlockSource, public TransferBlocks, private FreedBlocks {
 public:
  // What a begun step names is free only once that is over.
  EngineBlocks(int32_t num_blocks, const KvWindow& window, bool prefix_caching, Executor* executor);

  // ---- BlockSource; every sequence is an EngineSequence ----
  void AttachPrefix(Sequence* sequence) override;
  int32_t Grow(Sequence* sequence, int32_t num_tokens) override;
  bool Shrink(Sequence* sequence, int32_t num_tokens) override;
  void Release(Sequence* sequence) override;
  int32_t num_available() const override { return pool_.num_available(); }

  // How many full blocks of the sequence's tokens are cached, its last token's included.
  int32_t CountCachedBlocks(EngineSequence* sequence) const;

  // Fresh blocks at the end of the table, all or none.
  bool AppendBlocks(EngineSequence* sequence, int32_t num_blocks);
  // One more reference to each block of `table`.
  void Share(std::span<const BlockId> table);
  // Names the full blocks of the first `num_tokens`; their content is right and final. Those that
  // no token after them sees are given back.
  void CacheComputed(EngineSequence* sequence, int32_t num_tokens);
  // The table is to begin with the first block that the token at `position` sees: gives those
  // before it back, and does without those that it has not.
  void BeginAt(EngineSequence* sequence, int32_t position);

  // ---- TransferBlocks ----
  void Pin(BlockId block) override { pool_.Pin(block); }
  void Unpin(BlockId block) override { pool_.Unpin(block); }
  absl::Status Checksums(std::span<const BlockId> blocks, uint32_t* crc32c) override;

  // Copies that must precede the next step's runs.
  std::span<const BlockCopy> copies() const { return copies_; }

  // The copies, and runs of sequences with this number as their last_step, are begun. Steps are
  // numbered from 1 and over in that order.
  void BeginStep(uint64_t step);
  void FinishStep(uint64_t step) { limbo_.Finish(step, &pool_); }

  BlockCounts Counts() const { return pool_.Counts(); }
  KvEvents TakeEvents() { return cache_.TakeEvents(); }
  KvEvents Snapshot() const { return cache_.Snapshot(); }
  absl::Status Audit(BlockOwners owners) const;
  std::vector<NamedBlock> CachedBlocks() const { return cache_.NamedBlocks(); }

 private:
  void OnFreed(BlockId block) override { executor_->Discard(block); }
  // Makes the block of the next token the sequence's own. False: no block for the copy.
  bool OwnNextSlot(EngineSequence* sequence);

  // Gives back what the token at `position` and later ones do not see, as far as it is named.
  void GiveBack(EngineSequence* sequence, int32_t position);

  // Only the sequence can see the block, apart from copies of it that may not have run.
  bool Exclusive(BlockId block) const;

  struct KnownChecksum {
    uint32_t life = 0;  // The block's when it was computed; 0: not known.
    uint32_t crc32c = 0;
  };

  const int32_t block_tokens_;
  const KvWindow window_;
  Executor* const executor_;
  BlockPool pool_;
  PrefixCache cache_;
  std::vector<BlockCopy> copies_;
  std::vector<BlockId> copy_sources_;  // Those of copies_: nobody else gets them before.
  StepLimbo limbo_;
  std::vector<KnownChecksum> checksums_;  // By block.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_ENGINE_BLOCKS_H_
