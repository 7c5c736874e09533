// What a step gives back of one sequence: a token, how likely it was, and whether it was the last.

#ifndef TANDEM_RUNTIME_PROTOCOL_SAMPLED_TOKEN_H_
#define TANDEM_RUNTIME_PROTOCOL_SAMPLED_TOKEN_H_

#include <cstdint>
#include <vector>

namespace tandem {

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

#endif  // TANDEM_RUNTIME_PROTOCOL_SAMPLED_TOKEN_H_
