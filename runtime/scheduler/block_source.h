// Where the scheduler gets blocks from: the engine's pool and prefix cache behind three calls.

#ifndef TANDEM_RUNTIME_SCHEDULER_BLOCK_SOURCE_H_
#define TANDEM_RUNTIME_SCHEDULER_BLOCK_SOURCE_H_

#include <cstdint>

#include "runtime/scheduler/sequence.h"

namespace tandem {

class BlockSource {
 public:
  virtual ~BlockSource() = default;

  // Puts the cached blocks of the sequence's prefix into its empty table and sets num_computed,
  // leaving at least one token to compute.
  virtual void AttachPrefix(Sequence* sequence) = 0;

  // Extends the table towards `num_tokens` as far as blocks last, and makes the block of the next
  // token the sequence's own. Returns how many tokens the table covers now, at most `num_tokens`;
  // at most num_computed if not even the next token has a place.
  virtual int32_t Grow(Sequence* sequence, int32_t num_tokens) = 0;

  // Takes back the blocks at the end of the table in which no position below `num_tokens` lies; no
  // step that is begun has a run of the sequence. True if there were some.
  virtual bool Shrink(Sequence* sequence, int32_t num_tokens) = 0;

  // Takes all blocks back: empty table, num_computed 0.
  virtual void Release(Sequence* sequence) = 0;

  // Blocks that Grow could still hand out.
  virtual int32_t num_available() const = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SCHEDULER_BLOCK_SOURCE_H_
