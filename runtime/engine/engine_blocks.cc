#include "runtime/engine/engine_blocks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/guard.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"

namespace tandem {

EngineBlocks::EngineBlocks(int32_t num_blocks, const KvWindow& window, bool prefix_caching,
                           Executor* executor)
    : block_tokens_(window.block_tokens),
      window_(window),
      executor_(executor),
      pool_(num_blocks),
      cache_(
          {.block_tokens = window.block_tokens, .window = window.tokens, .enabled = prefix_caching},
          &pool_),
      checksums_(static_cast<size_t>(num_blocks)) {
  pool_.AttachFreedBlocks(this);
}

void EngineBlocks::AttachPrefix(Sequence* base) {
  auto* const sequence = static_cast<EngineSequence*>(base);
  TANDEM_CHECK(sequence->block_table.empty());
  PrefixCache::Hit hit{.blocks = {}, .cursor = {.name = sequence->spec->hash_root}};
  if (sequence->num_prompt_logprobs < 0) {
    // The last token is always computed: its logits are what the hit cannot give.
    const std::span<const int32_t> tokens(sequence->token_ids);
    hit = cache_.Match(sequence->spec->hash_root, tokens.first(tokens.size() - 1),
                       sequence->keep_from, &sequence->names);
  }
  sequence->block_table = std::move(hit.blocks);
  sequence->num_left_blocks = static_cast<int32_t>(
      std::count(sequence->block_table.begin(), sequence->block_table.end(), kNoBlock));
  sequence->cursor = hit.cursor;
  sequence->num_named_blocks = static_cast<int32_t>(sequence->block_table.size());
  sequence->num_computed = sequence->num_named_blocks * block_tokens_;
}

int32_t EngineBlocks::Grow(Sequence* base, int32_t num_tokens) {
  auto* const sequence = static_cast<EngineSequence*>(base);
  if (!OwnNextSlot(sequence)) return sequence->num_computed;
  const int32_t wanted =
      CeilDiv(num_tokens, block_tokens_) - static_cast<int32_t>(sequence->block_table.size());
  if (wanted > 0) AppendBlocks(sequence, std::min(wanted, num_available()));
  return std::min(num_tokens, static_cast<int32_t>(sequence->block_table.size()) * block_tokens_);
}

bool EngineBlocks::Shrink(Sequence* sequence, int32_t num_tokens) {
  std::vector<BlockId>& table = sequence->block_table;
  const auto kept = static_cast<size_t>(CeilDiv(num_tokens, block_tokens_));
  if (table.size() <= kept) return false;
  pool_.Release(std::span(table).subspan(kept));
  table.resize(kept);
  return true;
}

bool EngineBlocks::OwnNextSlot(EngineSequence* sequence) {
  // A block that begins with the next token is not in the table yet, or only in this one.
  if (sequence->num_computed % block_tokens_ == 0) return true;
  const auto index = static_cast<size_t>(sequence->num_computed / block_tokens_);
  if (index >= sequence->block_table.size()) return true;  // The run before found no place either.
  BlockId& block = sequence->block_table[index];
  if (pool_.Exclusive(block) || Exclusive(block)) return true;
  absl::StatusOr<std::vector<BlockId>> own = pool_.Allocate(1);
  if (!own.ok()) return false;
  copies_.push_back({.source = block, .destination = own->front()});
  copy_sources_.push_back(block);
  block = own->front();
  return true;
}

void EngineBlocks::Release(Sequence* base) {
  auto* const sequence = static_cast<EngineSequence*>(base);
  const auto num_left = static_cast<size_t>(sequence->num_left_blocks);
  limbo_.Release(std::span(sequence->block_table).subspan(num_left), sequence->last_step, &pool_);
  sequence->block_table.clear();
  sequence->num_left_blocks = 0;
  sequence->num_computed = 0;
  sequence->num_named_blocks = 0;
  sequence->cursor = {.name = sequence->spec->hash_root};
}

int32_t EngineBlocks::CountCachedBlocks(EngineSequence* sequence) const {
  if (sequence->num_prompt_logprobs >= 0) return 0;
  return cache_.CountMatch(sequence->spec->hash_root, sequence->token_ids, sequence->keep_from,
                           &sequence->names);
}

bool EngineBlocks::AppendBlocks(EngineSequence* sequence, int32_t num_blocks) {
  absl::StatusOr<std::vector<BlockId>> blocks = pool_.Allocate(num_blocks);
  if (!blocks.ok()) return false;
  sequence->block_table.insert(sequence->block_table.end(), blocks->begin(), blocks->end());
  return true;
}

void EngineBlocks::Share(std::span<const BlockId> table) {
  for (const BlockId block : table) {
    if (block != kNoBlock) pool_.AddReference(block);
  }
}

void EngineBlocks::BeginStep(uint64_t step) {
  copies_.clear();
  if (copy_sources_.empty()) return;
  limbo_.Release(copy_sources_, step, &pool_);
  copy_sources_.clear();
}

bool EngineBlocks::Exclusive(BlockId block) const {
  const int64_t copied =
      std::count(copy_sources_.begin(), copy_sources_.end(), block) + limbo_.references(block);
  return pool_.references(block) == 1 + copied && pool_.pins(block) == 0 && !pool_.cached(block);
}

void EngineBlocks::CacheComputed(EngineSequence* sequence, int32_t num_tokens) {
  const int32_t num_full = num_tokens / block_tokens_;
  while (sequence->num_named_blocks < num_full) {
    const auto i = static_cast<size_t>(sequence->num_named_blocks++);
    const auto block_tokens = static_cast<size_t>(block_tokens_);
    cache_.Append(&sequence->cursor,
                  std::span(sequence->token_ids).subspan(i * block_tokens, block_tokens),
                  sequence->block_table[i]);
  }
  GiveBack(sequence, num_tokens);
}

// A step that is begun may have them in its tables, but reads none: its tokens are later ones.
void EngineBlocks::GiveBack(EngineSequence* sequence, int32_t position) {
  if (window_.tokens == 0) return;
  int32_t& num_left = sequence->num_left_blocks;
  const int32_t end = std::min(sequence->num_named_blocks, sequence->keep_from);
  const int32_t first_seen = window_.FirstBlock(position);
  while (num_left < end && TANDEM_GUARD("given_back_in_window", num_left < first_seen)) {
    BlockId& left = sequence->block_table[static_cast<size_t>(num_left++)];
    pool_.Release(std::exchange(left, kNoBlock));
  }
}

void EngineBlocks::BeginAt(EngineSequence* sequence, int32_t position) {
  GiveBack(sequence, position);
  const int32_t first_seen = window_.FirstBlock(position);
  if (static_cast<int32_t>(sequence->block_table.size()) >= first_seen) return;
  sequence->block_table.resize(static_cast<size_t>(first_seen), kNoBlock);
  sequence->num_left_blocks = first_seen;
}

absl::Status EngineBlocks::Checksums(std::span<const BlockId> blocks, uint32_t* crc32c) {
  const auto known = [this](BlockId block) -> KnownChecksum& {
    return checksums_[static_cast<size_t>(block)];
  };
  std::vector<BlockId> unknown;
  for (const BlockId block : blocks) {
    if (known(block).life != pool_.life(block)) unknown.push_back(block);
  }
  if (!unknown.empty()) {
    std::vector<uint32_t> computed(unknown.size());
    TANDEM_RETURN_IF_ERROR(executor_->BlockChecksums(unknown, computed.data()));
    for (size_t i = 0; i < unknown.size(); ++i) {
      known(unknown[i]) = {.life = pool_.life(unknown[i]), .crc32c = computed[i]};
    }
  }
  for (const BlockId block : blocks) *crc32c++ = known(block).crc32c;
  return absl::OkStatus();
}

absl::Status EngineBlocks::Audit(BlockOwners owners) const {
  limbo_.CountReferences(&owners.references);
  for (const BlockId block : copy_sources_) ++owners.references[block];
  TANDEM_RETURN_IF_ERROR(pool_.Audit());
  const auto count = [](const std::map<BlockId, int32_t>& of, BlockId block) {
    const auto found = of.find(block);
    return found == of.end() ? 0 : found->second;
  };
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    const int32_t references = count(owners.references, block);
    const int32_t pins = count(owners.pins, block);
    if (references != pool_.references(block) || pins != pool_.pins(block)) {
      return absl::InternalError(
          absl::StrFormat("block %d: %d references and %d pins, of which %d and %d have an owner",
                          block, pool_.references(block), pool_.pins(block), references, pins));
    }
  }
  return cache_.Audit();
}

}  // namespace tandem
