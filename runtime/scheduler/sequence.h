// One generation as the scheduler sees it: tokens that are known, and how many of them have their
// K and V in the block table. Prefill, decode and recompute are the same: tokens to catch up.

#ifndef TANDEM_RUNTIME_SCHEDULER_SEQUENCE_H_
#define TANDEM_RUNTIME_SCHEDULER_SEQUENCE_H_

#include <cstdint>
#include <vector>

namespace tandem {

enum class SequenceState : uint8_t {
  kIdle,     // Not with the scheduler.
  kWaiting,  // Holds no blocks.
  kRunning,  // Holds blocks; in the batch whenever the budget allows.
};

// The engine derives its own sequences from this. Belongs to it; the scheduler borrows.
struct Sequence {
  uint64_t order = 0;                // Arrival, unique: lower is older and goes first.
  std::vector<int32_t> token_ids;    // Prompt and generated.
  int32_t num_computed = 0;          // KV of token_ids[0, num_computed) is in the table.
  std::vector<int32_t> block_table;  // Covers at least num_computed tokens.
  SequenceState state = SequenceState::kIdle;
  bool alone = false;  // Only ever in a batch of its own, in small chunks.
  bool whole = false;  // Starts with blocks for all its tokens, and keeps them: never preempted.

  int32_t remaining() const { return static_cast<int32_t>(token_ids.size()) - num_computed; }
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SCHEDULER_SEQUENCE_H_
