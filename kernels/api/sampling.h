// Tokens from logits: draws, and log-probabilities of tokens that are given.
//
// A draw depends on the row's bits, the query and (seed, choice, position) alone: not on the
// batch, the backend or how often it is repeated. docs/numerics.md, "Sampling", "Rows".

#ifndef TANDEM_KERNELS_API_SAMPLING_H_
#define TANDEM_KERNELS_API_SAMPLING_H_

#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/device_ptr.h"
#include "runtime/base/token_mask.h"

namespace tandem {

// Sums of weights, each at most 2^44, stay below 2^64.
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 19;

// What is asked of one row. Order: bias, masks, temperature, top-k, top-p, draw; greedy draws after
// the masks. Logprobs and ranks are of the raw logits, before all of it.
struct SampleQuery {
  int32_t row = 0;
  int32_t given = -1;     // A token to score, whatever follows but for num_top_logprobs; -1: draw.
  float temperature = 1;  // 0 is greedy: the highest logit, the lower id among equals.
  int32_t top_k = 0;      // Keep this many highest (lower ids first among equals); 0 keeps all.
  float top_p = 1;        // Keep the fewest highest whose probabilities reach top_p.
  uint64_t seed = 0;
  uint32_t choice = 0;            // Which of a request's n choices.
  uint64_t position = 0;          // The drawn token's, within prompt + generated tokens.
  int32_t num_top_logprobs = -1;  // How many best tokens to report; -1: no logprobs at all.
  // Ids outside the row are passed over.
  std::span<const std::pair<int32_t, float>> logit_bias;  // Added to logits, in this order; finite.
  std::span<const int32_t> masked_tokens;  // Never drawn: stop tokens before min_tokens.
  TokenMask allowed_tokens;                // Nor is what this does not allow.
};

struct RankedToken {
  int32_t token = 0;
  float logprob = 0;

  friend bool operator==(const RankedToken&, const RankedToken&) = default;
};

struct SampleResult {
  int32_t token = 0;  // Drawn or given.
  // Unless logprobs are asked for, 0 and empty.
  float logprob = 0;             // `token`'s.
  int32_t rank = 0;              // `token`'s; 1 is the best.
  std::vector<RankedToken> top;  // Best first; the lower id among equals.
};

// R rows of V logits, Q queries. Queries of one row that follow each other share what they need of
// it. A query fails alone: Internal, naming the id, if a logit of its row is NaN or infinite;
// InvalidArgument if what it asks is out of range or every token is masked.
template <template <typename> class P>
struct SampleArgsOf {
  P<const float> logits;                  // [R, V]
  P<int32_t> drawn_tokens = nullptr;      // [Q] 0 of a query that failed; or null
  int64_t num_rows;                       // R, may be 0
  int64_t vocabulary;                     // V, at most kMaxVocabulary
  const SampleQuery* queries;             // [Q], of the host, with all that they point at
  absl::StatusOr<SampleResult>* results;  // [Q], of the host; complete once a later event, or
                                          // Synchronize(), has been waited for
  int64_t count;                          // Q, may be 0
  static constexpr auto Pointers(auto& self) { return std::tie(self.logits, self.drawn_tokens); }
};
using SampleArgs = SampleArgsOf<DevicePtr>;

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_SAMPLING_H_
