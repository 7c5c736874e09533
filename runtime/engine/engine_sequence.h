// A sequence with what the engine needs beyond scheduling: whose it is, what it draws, and how far
// its blocks are named.

#ifndef TANDEM_RUNTIME_ENGINE_ENGINE_SEQUENCE_H_
#define TANDEM_RUNTIME_ENGINE_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/engine/executor.h"
#include "runtime/engine/token_masker.h"
#include "runtime/kv_cache/prefix_cache.h"
#include "runtime/protocol/request_spec.h"
#include "runtime/scheduler/sequence.h"

namespace tandem {

struct Attempt;
struct PrefillJob;

// Exactly one of `attempt` and `job` owns it.
struct EngineSequence final : Sequence {
  Attempt* attempt = nullptr;         // Tokens go to a router.
  PrefillJob* job = nullptr;          // Blocks and the first token go to a decode worker.
  const RequestSpec* spec = nullptr;  // The owner's.

  // What to draw after the last token: every choice while they share the prompt, then its own.
  std::vector<Draw> draws;
  // Null: without a mask. Its own: a copy gets others.
  std::shared_ptr<SequenceMasks> masks;
  bool forked = false;  // One choice of its own.
  bool ended = false;   // Kept for a begun step that has it; its owner may be gone.

  int64_t arrived_us = 0;
  int64_t begun_us = -1;  // The first step that computed some of it began; -1: none did.

  uint64_t last_step = 0;   // The last begun with a run of it; 0: none was.
  int32_t unseen_run = -1;  // The run of that step which draws the last token, a kUnseenToken.

  // How many of token_ids the host has seen: all but the last ones.
  int32_t num_seen() const {
    size_t seen = token_ids.size();
    while (seen > 0 && token_ids[seen - 1] == kUnseenToken) --seen;
    return static_cast<int32_t>(seen);
  }

  std::vector<BlockHash> names;  // The first blocks' names, as far as looked up.
  PrefixCursor cursor;           // After num_named_blocks.
  int32_t num_named_blocks = 0;
  int32_t num_left_blocks = 0;  // The window has left them: so many of its table are kNoBlock.
  // Blocks from this one on are kept, although the window leaves them: they travel.
  int32_t keep_from = kKeepNone;

  // >= 0: prompt logprobs are still being collected, so every token must be computed here.
  int32_t num_prompt_logprobs = -1;
  int32_t attached_tokens = -1;  // Found in the prefix cache when first admitted; -1: not yet.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_ENGINE_SEQUENCE_H_
