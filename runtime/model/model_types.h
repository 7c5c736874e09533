// The types of a model's numbers: three choices, of which none decides another
// (kernels/api/dtype.h), whether the output projection has the second one's, and which inputs of 8
// bits stay as they are.

#ifndef TANDEM_RUNTIME_MODEL_MODEL_TYPES_H_
#define TANDEM_RUNTIME_MODEL_MODEL_TYPES_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/api/dtype.h"

namespace tandem {

struct ModelTypes {
  DType compute = DType::kF32;            // Embeddings, and what feeds a matrix, too.
  WeightType weights = WeightType::kF32;  // What packed matrices are kept in.
  KvType kv = KvType::kF32;
  bool output_is_plain = false;  // The output projection is kept as what is computed in.
  float int8_outliers = 0;       // LinearSpec::outlier_threshold of matrices in 8 bits.

  // Weights and KV kept as what is computed in.
  static constexpr ModelTypes Of(DType compute) {
    return {.compute = compute, .weights = WeightTypeOf(compute), .kv = KvTypeOf(compute)};
  }
};

// For digests: what is kept decides bits as what is computed in does. The output projection is
// named only where it differs, outliers only where they are kept apart.
inline std::string NamesOf(const ModelTypes& types) {
  return absl::StrCat(
      "compute=", NameOf(types.compute), " weights=", NameOf(types.weights),
      " kv=", NameOf(types.kv),
      types.output_is_plain ? absl::StrCat(" output=", NameOf(types.compute)) : "",
      types.int8_outliers != 0 ? absl::StrFormat(" outliers=%.9g", types.int8_outliers) : "");
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_MODEL_TYPES_H_
