#include "runtime/model/int4_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "absl/strings/str_format.h"
#include "kernels/api/half.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/number_convert.h"

namespace tandem {
namespace {

// Outputs that are taken at once, so that what is read and what is written stays near.
constexpr int64_t kOutputsAtOnce = 64;

// Where output n of eight lies in AWQ's I32: of 0, 2, 4, 6, 1, 3, 5, 7 the place of n.
constexpr int kAwqPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};

// A tensor of I32s, at any address.
class Words {
 public:
  explicit Words(const TensorView& tensor) : bytes_(tensor.bytes.data()) {}
  uint32_t operator[](int64_t index) const {
    uint32_t word;
    std::memcpy(&word, bytes_ + index * 4, sizeof(word));
    return word;
  }
  uint8_t Nibble(int64_t index, int64_t place) const {
    return (*this)[index] >> (4 * place) & 0xFu;
  }

 private:
  const uint8_t* const bytes_;
};

absl::Status CheckTypes(const std::string& name, const Int4Tensors& tensors) {
  const auto check = [&name](const char* what, const TensorView& tensor, bool words) {
    if ((tensor.type == TensorType::kI32) == words) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrFormat("%s.%s: is of type %s, want %s", name,
                                                         what, Name(tensor.type),
                                                         words ? "I32" : "F16, F32 or BF16"));
  };
  TANDEM_RETURN_IF_ERROR(check("qweight", tensors.numbers, true));
  TANDEM_RETURN_IF_ERROR(check("qzeros", tensors.zeros, true));
  TANDEM_RETURN_IF_ERROR(check("scales", tensors.scales, false));
  return tensors.group_index ? check("g_idx", *tensors.group_index, true) : absl::OkStatus();
}

absl::Status CheckGroups(const std::string& name, const TensorView& group_index, int64_t group) {
  const Words groups(group_index);
  for (int64_t k = 0; k < group_index.shape[0]; ++k) {
    if (groups[k] == static_cast<uint64_t>(k / group)) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s.g_idx: input %d is of group %d, want %d: inputs in another order (desc_act) are not "
        "supported",
        name, k, groups[k], k / group));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Int4Matrix> UnpackInt4(const Int4Format& int4_format, const std::string& name,
                                      int64_t in_features, int64_t out_features,
                                      const Int4Tensors& tensors) {
  if (in_features % kInt4PerWord != 0 || out_features % kInt4PerWord != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: a matrix in 4 bits has %d inputs and %d outputs, which 8 must divide",
                        name, in_features, out_features));
  }
  TANDEM_RETURN_IF_ERROR(CheckTypes(name, tensors));
  if (tensors.group_index) {
    TANDEM_RETURN_IF_ERROR(CheckGroups(name, *tensors.group_index, int4_format.group));
  }
  const bool gptq = int4_format.method == Int4Format::Method::kGptq;
  const auto place = [gptq](int64_t n) -> int64_t {
    return gptq ? n % kInt4PerWord : kAwqPlaces[n % kInt4PerWord];
  };
  const int64_t groups = CeilDiv(in_features, int4_format.group);
  const Words numbers(tensors.numbers), zeros(tensors.zeros);
  Int4Matrix matrix{.numbers = std::vector<uint8_t>(in_features * out_features),
                    .scales = std::vector<float>(groups * out_features),
                    .zeros = std::vector<uint8_t>(groups * out_features)};
  for (int64_t first = 0; first < out_features; first += kOutputsAtOnce) {
    const int64_t end = std::min(first + kOutputsAtOnce, out_features);
    for (int64_t k = 0; k < in_features; ++k) {
      for (int64_t n = first; n < end; ++n) {
        matrix.numbers[n * in_features + k] =
            gptq ? numbers.Nibble(k / kInt4PerWord * out_features + n, k % kInt4PerWord)
                 : numbers.Nibble((k * out_features + n) / kInt4PerWord, place(n));
      }
    }
  }
  std::vector<float> scales(groups * out_features);
  ConvertToF32(tensors.scales.type, tensors.scales.bytes, scales);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < out_features; ++n) {
      const int64_t from = g * out_features + n, to = n * groups + g;
      matrix.scales[to] = scales[from];
      matrix.zeros[to] =
          static_cast<uint8_t>(zeros.Nibble(from / kInt4PerWord, place(n)) + int4_format.zero_less);
      if (std::isfinite(scales[from]) && ToFloat(ToHalf(scales[from])) == scales[from]) continue;
      return absl::FailedPreconditionError(
          absl::StrFormat("%s.scales: that of output %d in group %d is %g, which half precision "
                          "does not have",
                          name, n, g, scales[from]));
    }
  }
  return matrix;
}

}  // namespace tandem
