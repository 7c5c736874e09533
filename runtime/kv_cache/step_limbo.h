// Blocks that were let go of while a step that is begun names them: a run of it may still read and
// write them, although nobody wants what it gives. They are free once that step is over.
//
// Engine thread only. A value.

#ifndef TANDEM_RUNTIME_KV_CACHE_STEP_LIMBO_H_
#define TANDEM_RUNTIME_KV_CACHE_STEP_LIMBO_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/kv_cache/block_pool.h"

namespace tandem {

class StepLimbo {
 public:
  // Gives one reference of each block back to the pool, once step `last_step` is over. Steps are
  // numbered from 1 and over in that order.
  void Release(std::span<const BlockId> blocks, uint64_t last_step, BlockPool* pool);
  // The step is over.
  void Finish(uint64_t step, BlockPool* pool) {
    finished_ = step;
    if (!held_.empty()) ReleaseHeld(pool);
  }

  // References to the block that are here.
  int32_t references(BlockId block) const;
  void CountReferences(std::map<BlockId, int32_t>* references) const;

  // Appends bytes that are equal for equal states.
  void AppendState(std::string* bytes) const;

 private:
  struct Held {
    uint64_t step = 0;
    std::vector<BlockId> blocks;
  };
  void ReleaseHeld(BlockPool* pool);

  uint64_t finished_ = 0;  // The last step that is over.
  std::vector<Held> held_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_KV_CACHE_STEP_LIMBO_H_
