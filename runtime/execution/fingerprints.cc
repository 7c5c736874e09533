#include "runtime/execution/fingerprints.h"

#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "runtime/base/random.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

std::string HexSha256(const std::string& text) {
  const Sha256Digest digest = Sha256Of(text);
  return HexOf(digest.data(), digest.size());
}

// Draws from a fixed row with every kind of cut, and their log-probabilities.
absl::StatusOr<Sha256Digest> ProbeSampling(Backend* backend) {
  constexpr int kVocabulary = 4096 + 523;
  constexpr uint32_t kDraws = 64;
  Random random(0x7461'6e64'656d);
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = static_cast<float>(random.Next() >> 40) * 0x1p-20f;
  std::vector<SampleQuery> queries;
  for (uint32_t choice = 0; choice < kDraws; ++choice) {
    queries.push_back({.temperature = 0.7f + 0.1f * static_cast<float>(choice),
                       .top_k = choice % 2 == 0 ? 0 : 300,
                       .top_p = choice % 4 < 2 ? 1.0f : 0.9f,
                       .choice = choice,
                       .num_top_logprobs = 0});
  }
  const size_t bytes = logits.size() * sizeof(float);
  TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer row, backend->Allocate(bytes));
  TANDEM_RETURN_IF_ERROR(backend->Upload(row.data(), logits.data(), bytes));
  std::vector<absl::StatusOr<SampleResult>> results(kDraws);
  TANDEM_RETURN_IF_ERROR(backend->Sample({.logits = row.as<float>(),
                                          .num_rows = 1,
                                          .vocabulary = kVocabulary,
                                          .queries = queries.data(),
                                          .results = results.data(),
                                          .count = kDraws}));
  TANDEM_RETURN_IF_ERROR(backend->Synchronize());
  Sha256 hash;
  for (const absl::StatusOr<SampleResult>& drawn : results) {
    TANDEM_RETURN_IF_ERROR(drawn.status());
    hash.Update(&drawn->token, sizeof(drawn->token));
    hash.Update(&drawn->logprob, sizeof(drawn->logprob));
  }
  return hash.Finish();
}

}  // namespace

std::string KvClass(const Model& model, const KvLayout& layout) {
  return HexSha256(absl::StrFormat(
      "kv_class\n%s\n%s tile=%s/%d block=%d layers=%d heads=%d dim=%d bytes=%d\n", model.Digest(),
      NamesOf(model.types()), layout.tile_format.id, layout.tile_format.tile_bytes,
      layout.tile_shape.block_tokens, layout.num_layers, layout.num_kv_heads,
      layout.tile_shape.head_dim, layout.block_bytes));
}

ProbedOptions ProbedOptionsOf(const Model& model) {
  const ModelSpec& spec = model.spec();
  const LinearDecl& ffn_in = spec.layers[0].ffn_in;
  std::optional<KvType> kv_type = model.types().kv;
  if (kv_type == KvTypeOf(model.types().compute)) kv_type.reset();
  return {.window = spec.has_windows(),
          .head_norms = spec.has_head_norms(),
          .score_cap = model.config().score_cap != 0,
          .gated_gelu = ffn_in.gated && ffn_in.activation == ActivationFunction::kGeluTanh,
          .logit_cap = model.config().logit_cap != 0,
          .int8_weights = model.types().weights == WeightType::kInt8,
          .int8_outliers = model.types().int8_outliers != 0,
          .int4_weights = model.types().weights == WeightType::kInt4,
          .kv_type = kv_type};
}

absl::StatusOr<std::string> NumericsId(const Model& model, Backend* backend) {
  ProbedOptions options = ProbedOptionsOf(model);
  const auto head_dim = static_cast<int>(model.config().head_dim);
  if (backend->HasOwnAttention(head_dim)) options.head_dim = head_dim;
  TANDEM_ASSIGN_OR_RETURN(const Sha256Digest probe, ProbeNumerics(*backend, options));
  TANDEM_ASSIGN_OR_RETURN(const Sha256Digest draws, ProbeSampling(backend));
  return HexSha256(absl::StrFormat(
      "numerics_id\n%d\n%s\n%s\n%s\n%s\n", kNumericsVersion, model.Digest(), NamesOf(model.types()),
      HexOf(probe.data(), probe.size()), HexOf(draws.data(), draws.size())));
}

}  // namespace tandem
