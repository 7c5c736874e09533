#include "runtime/kv_cache/block_pool.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/guard.h"

namespace tandem {

BlockPool::BlockPool(int32_t num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {
  TANDEM_CHECK(num_blocks > 0) << num_blocks;
  free_.reserve(blocks_.size());
  for (BlockId id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
  counts_[static_cast<size_t>(BlockState::kFree)] = num_blocks;
}

void BlockPool::AttachIdleBlocks(IdleBlocks* idle_blocks) {
  TANDEM_CHECK(idle_blocks_ == nullptr);
  idle_blocks_ = idle_blocks;
}

void BlockPool::AttachFreedBlocks(FreedBlocks* freed_blocks) {
  TANDEM_CHECK(freed_blocks_ == nullptr);
  freed_blocks_ = freed_blocks;
}

const BlockPool::Block& BlockPool::At(BlockId block) const {
  TANDEM_CHECK(block >= 0 && block < num_blocks()) << "block " << block << " of " << num_blocks();
  return blocks_[static_cast<size_t>(block)];
}

BlockPool::Block& BlockPool::At(BlockId block) {
  return const_cast<Block&>(static_cast<const BlockPool*>(this)->At(block));
}

BlockState BlockPool::StateOf(const Block& block) {
  if (block.pins > 0) {
    return block.references > 0 ? BlockState::kInFlight : BlockState::kQuarantined;
  }
  if (block.references > 0) return BlockState::kHeld;
  return block.cached ? BlockState::kCached : BlockState::kFree;
}

template <typename Change>
void BlockPool::Update(BlockId id, Change change) {
  Block& block = At(id);
  const BlockState before = StateOf(block);
  change(&block);
  const BlockState after = StateOf(block);
  --counts_[static_cast<size_t>(before)];
  ++counts_[static_cast<size_t>(after)];
  if (block.references == 0 && !block.cached && !block.in_free_list &&
      TANDEM_GUARD("free_only_on_completion", block.pins == 0)) {
    block.in_free_list = true;
    ++block.life;
    free_.push_back(id);
    if (freed_blocks_ != nullptr) freed_blocks_->OnFreed(id);
  }
  if (before == after || idle_blocks_ == nullptr) return;
  if (after == BlockState::kCached) idle_blocks_->OnIdle(id);
  if (before == BlockState::kCached) idle_blocks_->OnBusy(id);
}

absl::StatusOr<std::vector<BlockId>> BlockPool::Allocate(int32_t n) {
  TANDEM_CHECK(n >= 0) << n;
  if (n > num_available()) {
    const BlockCounts counts = Counts();
    return absl::ResourceExhaustedError(
        absl::StrFormat("want %d blocks of %d: %d free, %d held, %d cached, %d in flight, %d "
                        "quarantined",
                        n, num_blocks(), counts.free, counts.held, counts.cached, counts.in_flight,
                        counts.quarantined));
  }
  while (static_cast<int32_t>(free_.size()) < n) idle_blocks_->EvictOne();
  std::vector<BlockId> blocks(static_cast<size_t>(n));
  for (BlockId& id : blocks) {
    id = free_.back();
    free_.pop_back();
    Update(id, [](Block* block) {
      block->in_free_list = false;
      block->references = 1;
    });
  }
  return blocks;
}

void BlockPool::AddReference(BlockId id) {
  TANDEM_CHECK(!At(id).in_free_list) << "block " << id << " is free";
  Update(id, [](Block* block) { ++block->references; });
}

void BlockPool::Release(BlockId id) {
  TANDEM_CHECK(At(id).references > 0) << "block " << id << " has no reference";
  Update(id, [](Block* block) { --block->references; });
}

void BlockPool::Release(std::span<const BlockId> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) Release(blocks[i]);
}

void BlockPool::Pin(BlockId id) {
  TANDEM_CHECK(At(id).references > 0) << "block " << id << " has no owner to pin it";
  Update(id, [](Block* block) { ++block->pins; });
}

void BlockPool::Unpin(BlockId id) {
  TANDEM_CHECK(At(id).pins > 0) << "block " << id << " is not pinned";
  Update(id, [](Block* block) { --block->pins; });
}

bool BlockPool::Exclusive(BlockId id) const {
  const Block& block = At(id);
  return block.references == 1 && block.pins == 0 && !block.cached;
}

void BlockPool::SetCached(BlockId id, bool cached) {
  TANDEM_CHECK(At(id).cached != cached) << "block " << id;
  TANDEM_CHECK(!cached || At(id).references > 0) << "block " << id << " has no owner to name it";
  Update(id, [cached](Block* block) { block->cached = cached; });
}

BlockState BlockPool::state(BlockId block) const { return StateOf(At(block)); }

BlockCounts BlockPool::Counts() const {
  const auto count = [this](BlockState state) { return counts_[static_cast<size_t>(state)]; };
  return {.free = count(BlockState::kFree),
          .held = count(BlockState::kHeld),
          .cached = count(BlockState::kCached),
          .in_flight = count(BlockState::kInFlight),
          .quarantined = count(BlockState::kQuarantined),
          .total = num_blocks()};
}

absl::Status BlockPool::Audit() const {
  int64_t counts[5] = {};
  std::vector<bool> listed(blocks_.size(), false);
  for (const BlockId id : free_) {
    if (listed[static_cast<size_t>(id)]) {
      return absl::InternalError(absl::StrFormat("block %d is in the free list twice", id));
    }
    listed[static_cast<size_t>(id)] = true;
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    const BlockState state = StateOf(block);
    ++counts[static_cast<size_t>(state)];
    const bool free = state == BlockState::kFree;
    if (block.references < 0 || block.pins < 0 || listed[i] != free || block.in_free_list != free) {
      return absl::InternalError(
          absl::StrFormat("block %d: %d references, %d pins, cached %d, but %s the free list", i,
                          block.references, block.pins, block.cached, listed[i] ? "in" : "not in"));
    }
  }
  if (!std::equal(std::begin(counts), std::end(counts), std::begin(counts_))) {
    return absl::InternalError("block counts differ from the blocks");
  }
  return absl::OkStatus();
}

void BlockPool::AppendState(std::string* bytes) const {
  for (const Block& block : blocks_) {
    bytes->push_back(static_cast<char>(block.references));
    bytes->push_back(static_cast<char>(block.pins));
    bytes->push_back(static_cast<char>(block.cached * 2 + block.in_free_list));
  }
  for (const BlockId id : free_) bytes->push_back(static_cast<char>(id));
}

}  // namespace tandem
