#include "kernels/probe/sampling_probe.h"

#include <cstdint>
#include <vector>

#include "kernels/api/sampling.h"
#include "runtime/base/random.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr int kVocabulary = 4096 + 523;
constexpr uint32_t kDraws = 64;

std::vector<float> FixedLogits() {
  Random random(0x7461'6e64'656d);
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = static_cast<float>(random.Next() >> 40) * 0x1p-20f;
  return logits;
}

std::vector<SampleQuery> EveryKindOfCut() {
  std::vector<SampleQuery> queries;
  for (uint32_t choice = 0; choice < kDraws; ++choice) {
    queries.push_back({.temperature = 0.7f + 0.1f * static_cast<float>(choice),
                       .top_k = choice % 2 == 0 ? 0 : 300,
                       .top_p = choice % 4 < 2 ? 1.0f : 0.9f,
                       .choice = choice,
                       .num_top_logprobs = 0});
  }
  return queries;
}

}  // namespace

absl::StatusOr<Sha256Digest> ProbeSampling(Backend& backend) {
  const std::vector<float> logits = FixedLogits();
  const std::vector<SampleQuery> queries = EveryKindOfCut();
  const size_t bytes = logits.size() * sizeof(float);
  TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer row, backend.Allocate(bytes));
  TANDEM_RETURN_IF_ERROR(backend.Upload(row.data(), logits.data(), bytes));
  std::vector<absl::StatusOr<SampleResult>> results(kDraws);
  TANDEM_RETURN_IF_ERROR(backend.Sample({.logits = row.as<float>(),
                                         .num_rows = 1,
                                         .vocabulary = kVocabulary,
                                         .queries = queries.data(),
                                         .results = results.data(),
                                         .count = kDraws}));
  TANDEM_RETURN_IF_ERROR(backend.Synchronize());
  Sha256 hash;
  for (const absl::StatusOr<SampleResult>& drawn : results) {
    TANDEM_RETURN_IF_ERROR(drawn.status());
    hash.Update(&drawn->token, sizeof(drawn->token));
    hash.Update(&drawn->logprob, sizeof(drawn->logprob));
  }
  return hash.Finish();
}

}  // namespace tandem
