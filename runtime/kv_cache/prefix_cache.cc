#include "runtime/kv_cache/prefix_cache.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"

namespace tandem {
namespace {

bool SameTokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

absl::Status Broken(BlockId block, const char* what) {
  return absl::InternalError(absl::StrFormat("block %d: %s", block, what));
}

}  // namespace

PrefixCache::PrefixCache(const Options& options, BlockPool* pool)
    : options_(options),
      window_{.tokens = options.window, .block_tokens = options.block_tokens},
      pool_(pool),
      entries_by_block_(static_cast<size_t>(pool->num_blocks())) {
  TANDEM_CHECK(options.block_tokens > 0 && options.block_tokens % kHashTokens == 0)
      << options.block_tokens << " tokens a block";
  pool_->AttachIdleBlocks(this);
}

BlockHash PrefixCache::NameOf(const BlockHash& parent, std::span<const int32_t> tokens) const {
  BlockHash name = parent;
  for (size_t i = 0; i < tokens.size(); i += kHashTokens) {
    name = options_.hasher(name, tokens.subspan(i, kHashTokens));
  }
  return name;
}

BlockId PrefixCache::Find(const BlockHash& name, const BlockHash& parent,
                          std::span<const int32_t> tokens) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return kNoBlock;
  const Entry& entry = entries_by_block_[static_cast<size_t>(found->second)];
  return entry.parent == parent && SameTokens(entry.tokens, tokens) ? found->second : kNoBlock;
}

PrefixCache::Hit PrefixCache::Look(const BlockHash& root, std::span<const int32_t> token_ids,
                                   int32_t keep_from, std::vector<BlockHash>* names) const {
  Hit hit{.blocks = {}, .cursor = {.name = root}};
  if (!options_.enabled) return hit;
  const auto block_tokens = static_cast<size_t>(options_.block_tokens);
  int32_t end = 0;    // Where the longest beginning so far ends.
  int32_t first = 0;  // The first block that must be here for that.
  int32_t run = 0;    // Where the cached blocks begin that hit.blocks ends with.
  BlockHash parent = root;
  std::vector<BlockHash> own;
  if (names == nullptr) names = &own;
  for (size_t i = 0; i + block_tokens <= token_ids.size(); i += block_tokens) {
    const std::span<const int32_t> tokens = token_ids.subspan(i, block_tokens);
    if (hit.blocks.size() == names->size()) names->push_back(NameOf(parent, tokens));
    const BlockHash name = (*names)[hit.blocks.size()];
    hit.blocks.push_back(Find(name, parent, tokens));
    parent = name;
    const auto num_blocks = static_cast<int32_t>(hit.blocks.size());
    if (hit.blocks.back() == kNoBlock) {
      if (window_.tokens == 0) break;
      run = num_blocks;
      continue;
    }
    const int32_t seen_from =
        std::min(keep_from, window_.FirstBlock(static_cast<int64_t>(i + block_tokens)));
    if (run > seen_from) continue;
    end = num_blocks;
    first = seen_from;
    hit.cursor.name = name;
  }
  hit.blocks.resize(static_cast<size_t>(end));
  std::fill_n(hit.blocks.begin(), first, kNoBlock);
  return hit;
}

PrefixCache::Hit PrefixCache::Match(const BlockHash& root, std::span<const int32_t> token_ids,
                                    int32_t keep_from, std::vector<BlockHash>* names) {
  Hit hit = Look(root, token_ids, keep_from, names);
  for (const BlockId block : hit.blocks) {
    if (block != kNoBlock) pool_->AddReference(block);
  }
  return hit;
}

int32_t PrefixCache::CountMatch(const BlockHash& root, std::span<const int32_t> token_ids,
                                int32_t keep_from, std::vector<BlockHash>* names) const {
  return static_cast<int32_t>(Look(root, token_ids, keep_from, names).blocks.size());
}

void PrefixCache::Append(PrefixCursor* cursor, std::span<const int32_t> tokens, BlockId block) {
  TANDEM_CHECK(static_cast<int32_t>(tokens.size()) == options_.block_tokens)
      << tokens.size() << " tokens in a block of " << options_.block_tokens;
  if (!options_.enabled || cursor->collided) return;
  const BlockHash parent = cursor->name;
  const BlockHash name = NameOf(parent, tokens);
  cursor->name = name;
  if (entries_.contains(name)) {
    cursor->collided = Find(name, parent, tokens) == kNoBlock;
    return;
  }
  if (block == kNoBlock) return;
  entries_.emplace(name, block);
  entries_by_block_[static_cast<size_t>(block)] = {
      .name = name, .parent = parent, .tokens = {tokens.begin(), tokens.end()}};
  pool_->SetCached(block, true);
  AddChild(parent, 1);
  RecordEvent(name, /*stored=*/true);
}

PrefixCache::EvictionKey PrefixCache::KeyOf(BlockId block) const {
  const Entry& entry = entries_by_block_[static_cast<size_t>(block)];
  return {.has_children = children_.contains(entry.name),
          .idle_since = entry.idle_since,
          .block = block};
}

void PrefixCache::AddChild(const BlockHash& parent, int32_t by) {
  // The parent's place among the idle changes with its first and its last child.
  const auto found = entries_.find(parent);
  const bool idle = found != entries_.end() && pool_->state(found->second) == BlockState::kCached;
  if (idle) idle_.erase(KeyOf(found->second));
  const auto count = children_.try_emplace(parent, 0).first;
  count->second += by;
  if (count->second == 0) children_.erase(count);
  if (idle) idle_.insert(KeyOf(found->second));
}

void PrefixCache::OnIdle(BlockId block) {
  entries_by_block_[static_cast<size_t>(block)].idle_since = ++clock_;
  idle_.insert(KeyOf(block));
}

void PrefixCache::OnBusy(BlockId block) { idle_.erase(KeyOf(block)); }

void PrefixCache::EvictOne() {
  TANDEM_CHECK(!idle_.empty());
  const BlockId block = idle_.begin()->block;
  pool_->SetCached(block, false);
  const Entry entry = std::move(entries_by_block_[static_cast<size_t>(block)]);
  entries_by_block_[static_cast<size_t>(block)] = {};
  entries_.erase(entry.name);
  AddChild(entry.parent, -1);
  RecordEvent(entry.name, /*stored=*/false);
}

void PrefixCache::RecordEvent(const BlockHash& name, bool stored) {
  const auto [pending, fresh] = pending_.try_emplace(name, stored);
  if (!fresh) pending_.erase(pending);  // It undoes what nobody has seen yet.
}

KvEvents PrefixCache::TakeEvents() {
  KvEvents events{.first_sequence = next_sequence_};
  for (const auto& [name, stored] : pending_) {
    (stored ? events.stored : events.removed).push_back(name);
    if (stored) {
      published_.insert(name);
    } else {
      published_.erase(name);
    }
  }
  next_sequence_ += pending_.size();
  pending_.clear();
  return events;
}

KvEvents PrefixCache::Snapshot() const {
  return {.first_sequence = next_sequence_,
          .snapshot = true,
          .stored = {published_.begin(), published_.end()}};
}

std::vector<NamedBlock> PrefixCache::NamedBlocks() const {
  std::vector<NamedBlock> named;
  for (BlockId block = 0; block < pool_->num_blocks(); ++block) {
    if (!pool_->cached(block)) continue;
    named.push_back({.name = entries_by_block_[static_cast<size_t>(block)].name, .block = block});
  }
  return named;
}

absl::Status PrefixCache::Audit() const {
  std::map<BlockHash, int32_t> children;
  size_t num_named = 0, num_idle = 0;
  for (BlockId block = 0; block < pool_->num_blocks(); ++block) {
    const Entry& entry = entries_by_block_[static_cast<size_t>(block)];
    if (!pool_->cached(block)) {
      if (!entry.tokens.empty()) return Broken(block, "named here, not in the pool");
      continue;
    }
    ++num_named;
    ++children[entry.parent];
    const auto found = entries_.find(entry.name);
    if (found == entries_.end() || found->second != block) {
      return Broken(block, "its name leads elsewhere");
    }
    if (NameOf(entry.parent, entry.tokens) != entry.name) {
      return Broken(block, "its name is not that of its tokens");
    }
    if (pool_->state(block) != BlockState::kCached) continue;
    ++num_idle;
    if (!idle_.contains(KeyOf(block))) return Broken(block, "idle but not evictable");
  }
  bool same_children = children.size() == children_.size();
  for (const auto& [name, count] : children) {
    const auto found = children_.find(name);
    same_children = same_children && found != children_.end() && found->second == count;
  }
  if (num_named != entries_.size() || num_idle != idle_.size() || !same_children) {
    return absl::InternalError(absl::StrFormat(
        "%d named blocks, %d entries; %d idle blocks, %d evictable; children %s", num_named,
        entries_.size(), num_idle, idle_.size(), same_children ? "agree" : "differ"));
  }
  return absl::OkStatus();
}

}  // namespace tandem
