// A model made of hashes. The payload of a slot is a hash chain of its prefix; the next token is a
// function of every payload in the block table, or, with a window, of those in it. So a block that
// holds another request's KV, a stale copy or a lost write changes the tokens, and the fault-free
// answer is known without running anything.

#ifndef TANDEM_RUNTIME_SIMULATION_SIMULATED_MODEL_H_
#define TANDEM_RUNTIME_SIMULATION_SIMULATED_MODEL_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "runtime/engine/token_masker.h"
#include "runtime/protocol/request_spec.h"
#include "runtime/protocol/sampled_token.h"

namespace tandem {

// What the next token is drawn from: the payloads of the last `window` positions, of all if that is
// 0.
class SimulatedContext {
 public:
  explicit SimulatedContext(int32_t window) : window_(static_cast<size_t>(window)) {}

  void Append(uint64_t payload);
  uint64_t state() const;

 private:
  const size_t window_;
  uint64_t state_ = 0;            // Without a window.
  std::deque<uint64_t> visible_;  // With one.
};

class SimulatedModel {
 public:
  static constexpr int32_t kVocabulary = 1000;

  // Models of different `numerics` compute different payloads and so different tokens.
  explicit SimulatedModel(int32_t vocabulary = kVocabulary, uint64_t numerics = 0,
                          int32_t window = 0)
      : vocabulary_(vocabulary), numerics_(numerics), window_(window) {}

  int32_t vocabulary() const { return vocabulary_; }
  int32_t window() const { return window_; }

  // What is written for `token` at `position`, given the payload of the position before (at 0:
  // `numerics`).
  static uint64_t Payload(uint64_t previous, int32_t token, int32_t position);

  // The token after a context with this state. `position` is the drawn token's. The mask allows
  // one that is no stop token.
  SampledToken Draw(uint64_t state, int32_t position, int32_t choice, int32_t prompt_tokens,
                    const SamplingParams& sampling, TokenMask mask = {}) const;

  // `token` as the successor of such a context: what prompt logprobs report, and Draw for the
  // token it drew. `num_top` < 0: no logprob.
  SampledToken Score(uint64_t state, int32_t token, int32_t num_top) const;

  // What a fault-free run delivers for one choice: tokens after `prompt` until a stop token,
  // max_tokens or max_model_tokens. `masks`: the choice's, never late; null: it has none.
  std::vector<SampledToken> Generate(std::span<const int32_t> prompt, int32_t choice,
                                     const SamplingParams& sampling, SequenceMasks* masks = nullptr,
                                     int32_t max_model_tokens = INT32_MAX) const;
  std::vector<SampledToken> PromptLogprobs(std::span<const int32_t> prompt,
                                           int32_t num_prompt_logprobs) const;

 private:
  const int32_t vocabulary_;
  const uint64_t numerics_;
  const int32_t window_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_SIMULATED_MODEL_H_
