// What the engine keeps of the work it was given: attempts of routers, and prompts that it computes
// for decode workers.

#ifndef TANDEM_RUNTIME_ENGINE_ATTEMPT_H_
#define TANDEM_RUNTIME_ENGINE_ATTEMPT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/engine/engine_sequence.h"
#include "runtime/protocol/decode_transfer.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/peer_messages.h"
#include "runtime/protocol/prefill_transfer.h"
#include "runtime/protocol/router_messages.h"

namespace tandem {

// What a peer calls something means that on its own session: another peer's same word is another
// thing, and neither can touch the other's.
struct AttemptKey {
  SessionId router = 0;
  AttemptId attempt;
  auto operator<=>(const AttemptKey&) const = default;
};
struct JobKey {
  SessionId decode = 0;
  JobId job = 0;
  auto operator<=>(const JobKey&) const = default;
};

// The prompt of an attempt while a prefill worker computes it.
struct RemotePrefill {
  JobId job = 0;  // The attempt's order.
  PrefillPeer peer;
  DecodeTransfer transfer;
  int32_t cached_tokens = 0;  // That the prefill worker found in its prefix cache.
  bool at_any_price = false;  // Its router did not ask for what is faster.
  int64_t started_us = 0;
  int64_t granted_us = 0;
  int64_t first_token_us = 0;
};

struct StartedChoice {
  int32_t choice = 0;
  int32_t token_id = 0;
};

struct Attempt {
  AttemptKey key;
  uint64_t order = 0;  // Its arrival; its sequences have OrderOf it.
  RequestTurns turns;
  RequestSpec spec;  // As it came; its token ids are the sequences', which add to them.
  int64_t deadline_us = 0;

  // One with the prompt until the first tokens are drawn, then one per choice that goes on.
  std::vector<std::unique_ptr<EngineSequence>> sequences;
  int32_t num_unfinished = 0;  // Choices without their last token.

  // Until the PromptEvent.
  std::vector<SampledToken> prompt_logprobs;
  int32_t cached_tokens = 0;

  std::unique_ptr<RemotePrefill> remote;
  std::vector<StartedChoice> started_choices;  // First token delivered, sequence not forked yet.
  std::shared_ptr<const void> charge;          // Until it is admitted.
};

struct PrefillJob {
  JobKey key;
  AttemptId attempt;    // As its router calls it.
  uint64_t serial = 0;  // Never used again, unlike the key, which is a peer's word.
  RequestSpec spec;     // As of an Attempt.
  RequestTurns turns;
  std::unique_ptr<EngineSequence> sequence;
  PrefillTransfer transfer;
  int32_t num_ready_blocks = 0;  // Content final; those promised were told to `transfer`.
  std::vector<SampledToken> prompt_logprobs;
  std::shared_ptr<const void> charge;
};

// Frames for one decode worker.
struct DecodeLink {
  int32_t num_sending = 0;               // Handed to the transport, and not gone yet.
  std::map<uint64_t, PrefillJob*> held;  // By serial: whose next frames wait for these.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_ATTEMPT_H_
