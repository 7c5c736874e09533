// What is to be generated, from the client's front end down to the step: one struct that every
// message and every record of a request embeds, and the one check of it.
//
// A new sampling parameter is a field of SamplingParams here, a line in Validate, and its reader in
// kernels/sampling; docs/design.md lists the files.

#ifndef TANDEM_RUNTIME_PROTOCOL_REQUEST_SPEC_H_
#define TANDEM_RUNTIME_PROTOCOL_REQUEST_SPEC_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/kv_cache/block_hash.h"

namespace tandem {

inline constexpr int32_t kMaxChoices = 128;            // n; of one attempt at most.
inline constexpr int32_t kMaxRequestTokens = 4 << 20;  // Prompt + generated.
inline constexpr int32_t kMaxStopTokenIds = 1024;
inline constexpr int32_t kMaxTopLogprobs = 64;
inline constexpr size_t kMaxLogitBias = 300;       // Tokens, as OpenAI has it.
inline constexpr float kMaxAbsLogitBias = 100.0f;  // The same.

using TokenBias = std::pair<int32_t, float>;  // A token id, and what is added to its logit.

// Stop strings are matched by the router, on text.
struct SamplingParams {
  float temperature = 1.0f;          // 0: greedy.
  float top_p = 1.0f;                // 1: off.
  int32_t top_k = 0;                 // 0: off.
  uint64_t seed = 0;                 // The router draws one where the client gives none.
  int32_t min_tokens = 0;            // stop_token_ids are masked before.
  int32_t max_tokens = 0;            // Generated tokens over all attempts, at least 1.
  int32_t num_logprobs = -1;         // -1: none; else the sampled token's and this many top ones.
  int32_t num_prompt_logprobs = -1;  // -1: none; likewise for every prompt token but the first.
  std::vector<int32_t> stop_token_ids;  // Sampling one ends the sequence; it counts as generated.
  std::vector<TokenBias> logit_bias;    // Rising ids. Before the mask; logprobs do not see it.
};

// Generate from token_ids[prompt_tokens + generated so far] on, for each of `choices`. They share
// token_ids; what begins carries all n choices of the request, a resume carries one.
struct RequestSpec {
  std::vector<int32_t> token_ids;  // Prompt, then what earlier attempts delivered.
  int32_t prompt_tokens = 0;       // Length of the prompt in token_ids.
  std::vector<int32_t> choices;    // Indices in 0..n-1, ascending, at least one.
  SamplingParams sampling;
  int64_t time_left_us = 0;  // Until the request's deadline.
  BlockHash hash_root;       // Model, adapter, tenant salt: root of the block hashes.
  bool runs_alone = false;   // Run with no other sequence in the batch.
};

// The spec of a prompt of which nothing has been generated: all n choices, no length or deadline
// yet.
RequestSpec SpecOfPrompt(std::vector<int32_t> prompt, int32_t num_choices);

// What only some who check know.
struct SpecLimits {
  int64_t vocab_size = int64_t{INT32_MAX} + 1;  // Token ids are below.
};

// The one check of what a request may say. Called where what others say comes in: a router's owner
// of requests, the reading of a message, a worker's engine, which is the first to know the
// vocabulary; beyond the engine ids are trusted. InvalidArgument names field and numbers.
absl::Status Validate(const RequestSpec& spec, const SpecLimits& limits);

// The parts of it that front ends and peers need alone, under the name that they have there:
// "prompt has token id 70 at 3, must be from 0 to 63".
template <typename Id>
absl::Status CheckTokenIds(std::string_view field, std::span<const Id> ids, int64_t vocab_size);
absl::Status CheckLogitBias(std::string_view field, std::span<const TokenBias> logit_bias,
                            int64_t vocab_size);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_REQUEST_SPEC_H_
