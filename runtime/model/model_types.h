// The types of a model's numbers: three choices, of which none decides another
// (kernels/api/dtype.h), and whether the output projection has the second one's.

#ifndef TANDEM_RUNTIME_MODEL_MODEL_TYPES_H_
#define TANDEM_RUNTIME_MODEL_MODEL_TYPES_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/api/dtype.h"

namespace tandem {

struct ModelTypes {
  DType compute = DType::kF32;            // Embeddings, and what feeds a matrix, too.
  WeightType weights = WeightType::kF32;  // What packed matrices are kept in.
  KvType kv = KvType::kF32;
  bool output_is_plain = false;  // The output projection is kept as what is computed in.

  // Weights and KV kept as what is computed in.
  static constexpr ModelTypes Of(DType compute) {
    return {.compute = compute, .weights = WeightTypeOf(compute), .kv = KvTypeOf(compute)};
  }
};

// For digests: what is kept decides bits as what is computed in does. The output projection is
// named only where it differs.
inline std::string NamesOf(const ModelTypes& types) {
  return absl::StrCat("compute=", NameOf(types.compute), " weights=", NameOf(types.weights),
                      " kv=", NameOf(types.kv),
                      types.output_is_plain ? absl::StrCat(" output=", NameOf(types.compute)) : "");
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_MODEL_TYPES_H_
