// What the engine keeps of the work it was given: attempts of routers, and prompts that it computes
// for decode workers.

#ifndef TANDEM_RUNTIME_ENGINE_ATTEMPT_H_
#define TANDEM_RUNTIME_ENGINE_ATTEMPT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/engine/engine_sequence.h"
#include "runtime/engine/work_keys.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/request_spec.h"
#include "runtime/protocol/sampled_token.h"

namespace tandem {

// What the sender of a command is charged for it, kept for as long as it waits; that of a prompt
// until it is admitted to a batch or has ended, and where it is computed for another worker until
// its blocks are not needed any more.
using CommandCharge = std::shared_ptr<const void>;

struct StartedChoice {
  int32_t choice = 0;
  int32_t token_id = 0;
};

// While a prefill worker has its prompt, DecodeSide knows it by its order.
struct Attempt {
  AttemptKey key;
  uint64_t order = 0;  // When it arrived; sequences have OrderOf it.
  RequestRounds rounds;
  RequestSpec spec;  // As it came; its token ids are the sequences', which add to them.
  int64_t deadline_us = 0;

  // One with the prompt until the first tokens are drawn, then one per choice that goes on.
  std::vector<std::unique_ptr<EngineSequence>> sequences;
  int32_t num_unfinished = 0;  // Choices without their last token.

  // Until the PromptEvent.
  std::vector<SampledToken> prompt_logprobs;
  int32_t cached_tokens = 0;

  std::vector<StartedChoice> started_choices;  // First token delivered, sequence not forked yet.
  CommandCharge charge;                        // Until it is admitted.
};

// What is sent of it, PrefillSide knows.
struct PrefillJob {
  JobKey key;
  AttemptId attempt;  // As its router calls it.
  RequestSpec spec;   // As of an Attempt.
  RequestRounds rounds;
  std::unique_ptr<EngineSequence> sequence;
  std::vector<SampledToken> prompt_logprobs;
  CommandCharge charge;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_ATTEMPT_H_
