#include "runtime/execution/fingerprints.h"

#include "absl/strings/str_format.h"
#include "kernels/api/numerics_probe.h"
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
      NameOf(layout.tile_shape.dtype), layout.tile_format.id, layout.tile_format.tile_bytes,
      layout.tile_shape.block_tokens, layout.num_layers, layout.num_kv_heads,
      layout.tile_shape.head_dim, layout.block_bytes));
}

absl::StatusOr<std::string> NumericsId(const Model& model, Backend* backend) {
  TANDEM_ASSIGN_OR_RETURN(const Sha256Digest probe, ProbeNumerics(*backend));
  return HexSha256(absl::StrFormat("numerics_id\n%d\n%s\n%s\n%s\n", kNumericsVersion,
                                   model.Digest(), NameOf(model.compute_dtype()),
                                   HexOf(probe.data(), probe.size())));
}

}  // namespace tandem
