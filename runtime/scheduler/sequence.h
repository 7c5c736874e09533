// One sequence as the scheduler sees it: tokens that are known, and how many of them have their
// K and V in the block table. Prefill, decode and recompute are the same: tokens to catch up.

#ifndef TANDEM_RUNTIME_SCHEDULER_SEQUENCE_H_
#define TANDEM_RUNTIME_SCHEDULER_SEQUENCE_H_

#include <cstdint>
#include <limits>
#include <vector>

namespace tandem {

enum class SequenceState : uint8_t {
  kIdle,     // Not with the scheduler.
  kWaiting,  // Holds no blocks.
  kRunning,  // Holds blocks; in the batch whenever the budget allows.
};

// What the sequences of one request have had together: requests share steps, not sequences. One for
// each request, which outlives its sequences' time with the scheduler; only the scheduler writes
// it.
struct RequestRounds {
  int64_t last = 0;  // The round of the request's last decode.
};

// Who goes first, unique: lower does. Of the first sequences of all requests the one that arrived
// first, then of the second ones, and so on: a request with many choices has the blocks of one
// before any that others want, and the others only where nobody wants them.
inline constexpr uint64_t OrderOf(uint64_t arrival, uint64_t rank) { return rank << 48 | arrival; }
inline constexpr uint64_t RankOf(uint64_t order) { return order >> 48; }
inline constexpr uint64_t kNoOrder = std::numeric_limits<uint64_t>::max();  // After everybody.

// The engine derives its own sequences from this. Belongs to it; the scheduler borrows.
struct Sequence {
  uint64_t order = 0;                // OrderOf.
  std::vector<int32_t> token_ids;    // Prompt and generated.
  int32_t num_computed = 0;          // KV of token_ids[0, num_computed) is in the table.
  std::vector<int32_t> block_table;  // Covers num_computed tokens, if each begun run draws one.
  SequenceState state = SequenceState::kIdle;
  bool runs_alone = false;  // Only ever in a batch of its own, in small chunks.
  bool held = false;  // What was begun of it comes first: nothing more of it is scheduled yet.
  // It starts with blocks for all its tokens, and keeps them: it is never preempted.
  bool keeps_blocks = false;
  RequestRounds* rounds = nullptr;  // The request's.
  // At most so many tokens of it, and of what forks from it, are ever computed; then it ends and
  // gives its blocks back.
  int64_t final_tokens = std::numeric_limits<int32_t>::max();
  // A decode has blocks for so many tokens after its next one, up to final_tokens, as far as blocks
  // are free: it may draw them in one step. Nobody is preempted when they are taken.
  int32_t lookahead_tokens = 0;
  int64_t round = 0;  // In which it decodes next; only the scheduler writes it.

  int32_t remaining() const { return static_cast<int32_t>(token_ids.size()) - num_computed; }
  // Ends with the step that computes what is known of it.
  bool brief() const { return final_tokens <= static_cast<int64_t>(token_ids.size()); }
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SCHEDULER_SEQUENCE_H_
