#include "runtime/kv_cache/step_limbo.h"

#include <algorithm>

#include "runtime/base/guard.h"

namespace tandem {

void StepLimbo::Release(std::span<const BlockId> blocks, uint64_t last_step, BlockPool* pool) {
  if (TANDEM_GUARD("freed_under_running_step", last_step <= finished_)) {
    pool->Release(blocks);
  } else {
    held_.push_back({.step = last_step, .blocks = {blocks.begin(), blocks.end()}});
  }
}

void StepLimbo::ReleaseHeld(BlockPool* pool) {
  std::erase_if(held_, [this, pool](const Held& held) {
    if (held.step > finished_) return false;
    pool->Release(held.blocks);
    return true;
  });
}

int32_t StepLimbo::references(BlockId block) const {
  int64_t references = 0;
  for (const Held& held : held_) {
    references += std::count(held.blocks.begin(), held.blocks.end(), block);
  }
  return static_cast<int32_t>(references);
}

void StepLimbo::CountReferences(std::map<BlockId, int32_t>* references) const {
  for (const Held& held : held_) {
    for (const BlockId block : held.blocks) ++(*references)[block];
  }
}

void StepLimbo::AppendState(std::string* bytes) const {
  for (const Held& held : held_) {
    for (const BlockId block : held.blocks) bytes->push_back(static_cast<char>(block));
    bytes->push_back('|');
  }
}

}  // namespace tandem
