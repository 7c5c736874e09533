#include "runtime/execution/fingerprints.h"

#include <optional>

#include "absl/strings/str_format.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

std::string HexSha256(const std::string& text) {
  const Sha256Digest digest = Sha256Of(text);
  return HexOf(digest.data(), digest.size());
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
  std::optional<KvType> kv_type = model.types().kv;
  if (kv_type == KvTypeOf(model.types().compute)) kv_type.reset();
  return {.window = spec.has_windows(),
          .head_norms = spec.has_head_norms(),
          .score_cap = model.config().score_cap != 0,
          .logit_cap = model.config().logit_cap != 0,
          .int8_weights = model.types().weights == WeightType::kInt8,
          .int8_outliers = model.types().int8_outliers != 0,
          .int4_weights = model.types().weights == WeightType::kInt4,
          .fp8_weights = model.weights().fp8_layers() > 0,
          .kv_type = kv_type};
}

absl::StatusOr<std::string> NumericsId(const Model& model, Backend* backend) {
  ProbedOptions options = ProbedOptionsOf(model);
  const auto head_dim = static_cast<int>(model.config().head_dim);
  if (backend->HasOwnAttention(head_dim)) options.head_dim = head_dim;
  TANDEM_ASSIGN_OR_RETURN(const Sha256Digest probe, ProbeNumerics(*backend, options));
  return HexSha256(absl::StrFormat("numerics_id\n%s\n%s\n%s\n", model.Digest(),
                                   NamesOf(model.types()), HexOf(probe.data(), probe.size())));
}

}  // namespace tandem
