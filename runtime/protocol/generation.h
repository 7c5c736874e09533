// What a request asks of sampling, and what a step gives back.

#ifndef TANDEM_RUNTIME_PROTOCOL_GENERATION_H_
#define TANDEM_RUNTIME_PROTOCOL_GENERATION_H_

#include <cstdint>
#include <vector>

namespace tandem {

inline constexpr int32_t kMaxChoices = 128;  // n; of one attempt at most.

// Ranges are checked where requests are parsed (services/router); the runtime trusts them.
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
};

enum class FinishReason : uint8_t {
  kNone,    // Goes on.
  kStop,    // A stop token (worker) or a stop string (router).
  kLength,  // max_tokens.
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};

// A token with its log-probability under the raw (untempered, unmasked) distribution.
struct SampledToken {
  int32_t token = 0;
  float logprob = 0;              // 0 if no logprobs were asked for.
  int32_t rank = 0;               // 1: the most likely; 0 if no logprobs were asked for.
  std::vector<TokenLogprob> top;  // Most likely first, ties by lower id.
  bool operator==(const SampledToken&) const = default;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_GENERATION_H_
