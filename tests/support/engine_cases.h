// Requests for engine tests.

#ifndef TANDEM_TESTS_SUPPORT_ENGINE_CASES_H_
#define TANDEM_TESTS_SUPPORT_ENGINE_CASES_H_

#include <cstdint>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/engine/engine.h"

namespace tandem {

inline EngineOptions SmallEngine(int32_t num_blocks = 64) {
  EngineOptions options;
  options.kv.num_blocks = num_blocks;
  options.max_sequences = 8;
  options.max_batched_tokens = 64;
  options.max_model_tokens = 512;
  options.max_waiting_attempts = 64;
  return options;
}

// Prompts of the same seed begin alike.
inline std::vector<int32_t> RandomTokens(int32_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random.Below(1'000)));
  return tokens;
}

inline Submit MakeSubmit(uint64_t counter, std::vector<int32_t> prompt, int32_t max_tokens,
                         int32_t num_choices = 1) {
  Submit submit;
  submit.attempt = {.request = {.router_incarnation = 9, .counter = counter}, .attempt = 1};
  submit.spec = SpecOfPrompt(std::move(prompt), num_choices);
  submit.spec.sampling.max_tokens = max_tokens;
  submit.spec.sampling.seed = counter * 7919;
  submit.spec.time_left_us = 60'000'000;
  submit.spec.hash_root = HashRoot("simulated", "", "");
  return submit;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_ENGINE_CASES_H_
