// One row of logits to one token, with log-probabilities.
//
// A draw depends on the row's bits, the arguments, and (seed, choice, position) alone: not on the
// batch, the thread, the worker or how often it is repeated. docs/numerics.md, "Sampling", "Rows".

#ifndef TANDEM_RUNTIME_SAMPLING_SAMPLER_H_
#define TANDEM_RUNTIME_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/sampling/row.h"

namespace tandem {

// Sums of weights (draw.h), each at most 2^44, stay below 2^64.
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 19;

struct RankedToken {
  int32_t token = 0;
  float logprob = 0;

  friend bool operator==(const RankedToken&, const RankedToken&) = default;
};

struct SampleArgs {
  float temperature = 1;  // 0 is greedy: the highest logit, the lower id among equals.
  int32_t top_k = 0;      // Keep this many highest (lower ids first among equals); 0 keeps all.
  float top_p = 1;        // Keep the fewest highest whose probabilities reach top_p.
  uint64_t seed = 0;
  uint32_t choice = 0;            // Which of a request's n choices.
  uint64_t position = 0;          // Of the drawn token within prompt + generated tokens.
  int32_t num_top_logprobs = -1;  // How many best tokens to report; -1: no logprobs at all.
  // Ids outside the row are passed over.
  std::span<const std::pair<int32_t, float>> logit_bias;  // Added to logits, in this order; finite.
  std::span<const int32_t> masked_tokens;  // Never drawn: stop tokens before min_tokens.
};

struct SampleResult {
  int32_t token = 0;
  float logprob = 0;             // Of `token`.
  int32_t rank = 0;              // Of `token`; 1 is the best.
  std::vector<RankedToken> top;  // Best first; the lower id among equals.
};

// Order: bias, mask, temperature, top-k, top-p, draw; greedy draws after the mask.
// Logprobs and ranks are of the raw logits, before all of it. They are 0
// and `top` is empty unless logprobs are asked for.

// A row of logits with what every draw and score of it needs, found once. One thread at a time.
class ScoredRow {
 public:
  // Borrows `logits`. Internal if one is NaN or infinite; InvalidArgument if the vocabulary is
  // empty or larger than kMaxVocabulary.
  static absl::StatusOr<ScoredRow> Make(std::span<const float> logits);

  std::span<const float> logits() const { return logits_; }
  const RowMaxima& maxima() const { return maxima_; }
  float LogProbabilityOf(int32_t id) const;

 private:
  explicit ScoredRow(std::span<const float> logits) : logits_(logits) {}

  std::span<const float> logits_;
  RowMaxima maxima_;
  mutable std::optional<float> log_sum_;  // Found when the first log-probability is asked for.
};

// Draws one token. Any thread; memory for it is kept per thread.
// InvalidArgument if an argument is out of range or every token is masked.
absl::StatusOr<SampleResult> Sample(const ScoredRow& row, const SampleArgs& args);

// The same numbers for a token that is given: prompt logprobs, bit-equal to generated ones.
// `num_top_logprobs` is at least 0. InvalidArgument if `token` is outside the row.
absl::StatusOr<SampleResult> Score(const ScoredRow& row, int32_t token, int32_t num_top_logprobs);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SAMPLING_SAMPLER_H_
