// Backend::Sample for backends that compute on the host: one row of logits to one token, with
// log-probabilities (kernels/api/sampling.h).

#ifndef TANDEM_KERNELS_SAMPLING_SAMPLER_H_
#define TANDEM_KERNELS_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/sampling.h"
#include "kernels/sampling/row.h"
#include "kernels/support/host_args.h"

namespace tandem {

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
absl::StatusOr<SampleResult> Sample(const ScoredRow& row, const SampleQuery& query);

// The same numbers for a token that is given: prompt logprobs, bit-equal to generated ones.
// `num_top_logprobs` is at least 0. InvalidArgument if `token` is outside the row.
absl::StatusOr<SampleResult> Score(const ScoredRow& row, int32_t token, int32_t num_top_logprobs);

// What else refuses a query, in the words of Sample and Score, for backends that draw elsewhere.
// InvalidArgument if what it asks of a row of `vocabulary` logits is out of range.
absl::Status CheckQuery(const SampleQuery& query, int64_t vocabulary);
absl::Status NotFinite(int64_t id, float logit);
absl::Status AllMasked(int64_t vocabulary);

// All queries of the rows whose first one is in [begin, end). Any thread, in any environment of
// floats.
void SampleRows(const HostSampleArgs& args, int64_t begin, int64_t end);

}  // namespace tandem

#endif  // TANDEM_KERNELS_SAMPLING_SAMPLER_H_
