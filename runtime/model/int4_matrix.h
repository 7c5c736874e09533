// Matrices that a checkpoint keeps in 4 bits, eight in an I32, the first in the lowest bits: GPTQ's
// (Frantar et al., ICLR 2023) and AWQ's (Lin et al., MLSys 2024). A weight is (q - zero) · scale.
//
//             numbers                              zeros                  scales
//   GPTQ      [K / 8, N] of eight inputs           [groups, N / 8]        [groups, N]
//   AWQ       [K, N / 8] of eight outputs          [groups, N / 8]        [groups, N]
//
// AWQ's outputs of an I32 come in the order 0, 2, 4, 6, 1, 3, 5, 7, zeros too. GPTQ's first format
// has zeros less 1: a stored 15 is 16 here, as in the kernels of ExLlama, where some readers make
// it 0. Quantisers store none.

#ifndef TANDEM_RUNTIME_MODEL_INT4_MATRIX_H_
#define TANDEM_RUNTIME_MODEL_INT4_MATRIX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/config/model_config.h"
#include "runtime/model/safetensors_file.h"

namespace tandem {

inline constexpr int64_t kInt4PerWord = 8;

// As they lie in the checkpoint, in the shapes above.
struct Int4Tensors {
  TensorView numbers, zeros, scales;
  std::optional<TensorView> group_index;  // [K]
};

// As kernels take them (WeightPart).
struct Int4Matrix {
  std::vector<uint8_t> numbers;  // [N, K]
  std::vector<float> scales;     // [N, groups]
  std::vector<uint8_t> zeros;    // [N, groups]
};

// `name` is the matrix's in messages. FailedPrecondition for tensors of other types, sizes that
// eight does not divide, an input that is not in the group of its place, and a scale that is not
// finite or that half precision does not have.
absl::StatusOr<Int4Matrix> UnpackInt4(const Int4Format& int4_format, const std::string& name,
                                      int64_t in_features, int64_t out_features,
                                      const Int4Tensors& tensors);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_INT4_MATRIX_H_
