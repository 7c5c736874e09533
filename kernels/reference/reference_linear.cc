#include "kernels/reference/reference_linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/api/e4m3.h"
#include "kernels/reference/numbers.h"
#include "kernels/support/int4.h"
#include "kernels/support/int8.h"
#include "kernels/support/vector_math.h"
#include "runtime/base/check.h"

namespace tandem {
namespace {

DType ElementType(WeightType type) { return type == WeightType::kF32 ? DType::kF32 : DType::kBF16; }

// What outputs, or their groups, have of 4 bits.
struct ScaleAndZero {
  float scale;
  int32_t zero;
};

// Packed weights are [N, K] numbers; 8 bits come behind the scales of the outputs, [N], 4 bits, a
// byte each, behind those of groups, [N, groups].
size_t ScaleBytes(const LinearSpec& spec) {
  const auto outputs = static_cast<size_t>(spec.out_features);
  if (spec.weight_type == WeightType::kInt8) return outputs * sizeof(float);
  if (spec.weight_type != WeightType::kInt4) return 0;
  return outputs * static_cast<size_t>(spec.groups()) * sizeof(ScaleAndZero);
}

class ReferenceLinearOp final : public LinearOp {
 public:
  ReferenceLinearOp(const LinearSpec& spec, const std::byte* packed)
      : LinearOp(spec), packed_(packed) {}
  const std::byte* numbers() const { return packed_ + ScaleBytes(spec()); }
  float scale(int64_t n) const { return reinterpret_cast<const float*>(packed_)[n]; }
  const ScaleAndZero* groups(int64_t n) const {
    return reinterpret_cast<const ScaleAndZero*>(packed_) + n * spec().groups();
  }

 private:
  const std::byte* const packed_;
};

size_t SizeOfNumber(WeightType type) {
  const bool bytes = type == WeightType::kInt8 || type == WeightType::kInt4;
  return bytes ? 1 : SizeOf(ElementType(type));
}

// The scale of array[begin], array[begin + stride], …: `count` numbers.
float ScaleOf(DType dtype, const void* array, int64_t begin, int64_t count, int64_t stride = 1) {
  uint32_t absmax = 0;
  for (int64_t i = 0; i < count; ++i) {
    absmax = std::max(absmax, MagnitudeBits(Load(dtype, array, begin + i * stride)));
  }
  return Int8Scale(std::bit_cast<float>(absmax));
}

// An input row and the weights of an output.
struct Operands {
  const LinearSpec& spec;
  const void* x;
  int64_t x_begin;
  const std::byte* w;
  int64_t w_begin;
  const ScaleAndZero* groups;  // kInt4 only.
};

// Inputs [begin, begin + count), whole groups but for the last of a layer.
float DotInt4(const Operands& of, int64_t begin, int64_t count) {
  const DType compute = of.spec.compute_dtype;
  const float scale = ScaleOf(compute, of.x, of.x_begin + begin, count);
  float sum = 0.0f;
  for (int64_t first = begin; first < begin + count; first += of.spec.group) {
    const ScaleAndZero& group = of.groups[first / of.spec.group];
    const int64_t end = std::min(first + of.spec.group, begin + count);
    int64_t products = 0;
    for (int64_t k = first; k < end; ++k) {
      const int64_t q = std::to_integer<int64_t>(of.w[of.w_begin + k]);
      products += (q - group.zero) * ToInt8(Load(compute, of.x, of.x_begin + k), scale);
    }
    sum = sum + static_cast<float>(products) * group.scale;
  }
  return sum * scale;
}

// Inputs [begin, begin + count). Outliers have an accumulator of their own, k ascending.
float DotInt8(const Operands& of, int64_t begin, int64_t count) {
  const float threshold = of.spec.outlier_threshold;
  std::vector<float> kept;  // What is made 8 bits.
  float outliers = 0.0f;
  const auto* const w = reinterpret_cast<const int8_t*>(of.w) + of.w_begin + begin;
  for (int64_t k = 0; k < count; ++k) {
    const float x = Load(of.spec.compute_dtype, of.x, of.x_begin + begin + k);
    const bool is_outlier = threshold != 0 && std::abs(x) >= threshold;
    kept.push_back(is_outlier ? 0.0f : x);
    if (is_outlier) outliers = outliers + x * static_cast<float>(w[k]);
  }
  const float scale = ScaleOf(DType::kF32, kept.data(), 0, count);
  int64_t sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += w[k] * ToInt8(kept[k], scale);
  return static_cast<float>(sum) * scale + outliers;
}

// Inputs [begin, begin + count): one accumulator, k ascending. Integers are exact.
float Dot(const Operands& of, int64_t begin, int64_t count) {
  const DType compute = of.spec.compute_dtype;
  if (of.spec.weight_type == WeightType::kInt4) return DotInt4(of, begin, count);
  if (of.spec.weight_type == WeightType::kInt8) return DotInt8(of, begin, count);
  const DType weight = ElementType(of.spec.weight_type);
  float sum = 0.0f;
  for (int64_t k = begin; k < begin + count; ++k) {
    sum = sum + Load(compute, of.x, of.x_begin + k) * Load(weight, of.w, of.w_begin + k);
  }
  return sum;
}

// The pairwise tree over segments [first, first + count); nothing if all of them are empty.
std::optional<float> SegmentTree(const Operands& of, int first, int count) {
  if (count == 1) {
    const int64_t begin = LinearSegmentBegin(of.spec.in_features, first);
    const int64_t end = LinearSegmentBegin(of.spec.in_features, first + 1);
    if (begin == end) return std::nullopt;
    return Dot(of, begin, end - begin);
  }
  const auto left = SegmentTree(of, first, count / 2);
  const auto right = SegmentTree(of, first + count / 2, count / 2);
  if (!left) return right;
  if (!right) return left;
  return *left + *right;
}

float Activated(ActivationFunction function, float x) {
  return function == ActivationFunction::kSilu ? Silu(x) : GeluTanh(x);
}

// Where a part has the weights of an output of the layer.
struct Output {
  int64_t begin, stride;
  int64_t index;
};

void PackInt8(const LinearSpec& spec, const WeightPart& part, const Output& output, float* scales,
              std::byte* numbers) {
  float& scale = scales[output.index];
  scale = ScaleOf(part.dtype, part.data, output.begin, spec.in_features, output.stride);
  for (int64_t k = 0; k < spec.in_features; ++k) {
    numbers[output.index * spec.in_features + k] = static_cast<std::byte>(
        ToInt8(Load(part.dtype, part.data, output.begin + k * output.stride), scale));
  }
}

void PackInt4(const LinearSpec& spec, const WeightPart& part, const Output& output,
              ScaleAndZero* groups, std::byte* numbers) {
  numbers += output.index * spec.in_features;
  for (int64_t g = 0; g < spec.groups(); ++g) {
    const int64_t first = g * spec.group;
    const int64_t end = std::min(first + spec.group, spec.in_features);
    ScaleAndZero& group = groups[output.index * spec.groups() + g];
    if (spec.scaled) {
      const int64_t at = output.begin / spec.in_features * spec.groups() + g;
      group = {.scale = ToFloat(ToHalf(part.scales[at])), .zero = part.zeros[at]};
      const auto* const given = static_cast<const std::byte*>(part.data) + output.begin;
      std::copy(given + first, given + end, numbers + first);
      continue;
    }
    const auto load = [&](int64_t k) {
      return Load(part.dtype, part.data, output.begin + k * output.stride);
    };
    Int4Range range;
    for (int64_t k = first; k < end; ++k) range.Add(load(k));
    const Int4Group made = Int4GroupOf(range);
    group = {.scale = ToFloat(made.scale), .zero = made.zero};
    for (int64_t k = first; k < end; ++k) {
      numbers[k] = static_cast<std::byte>(ToInt4(load(k), made));
    }
  }
}

void PackFp8(const LinearSpec& spec, const WeightPart& part, const Output& output,
             std::byte* numbers) {
  const auto* const given = static_cast<const E4m3*>(part.data) + output.begin;
  const float* const scales = &part.scales[output.begin / spec.in_features * spec.groups()];
  for (int64_t k = 0; k < spec.in_features; ++k) {
    Store(DType::kBF16, numbers, output.index * spec.in_features + k,
          ToFloat(given[k]) * scales[k / spec.group]);
  }
}

}  // namespace

PackedFormat ReferencePackedFormat(const LinearSpec& spec) {
  std::string id = absl::StrCat("reference.1.", NameOf(spec.weight_type));
  if (spec.weight_type == WeightType::kInt4) absl::StrAppend(&id, ".g", spec.group);
  return {
      .id = std::move(id),
      .size_bytes = ScaleBytes(spec) + static_cast<size_t>(spec.in_features * spec.out_features) *
                                           SizeOfNumber(spec.weight_type)};
}

void ReferencePack(const LinearSpec& spec, std::span<const WeightPart> parts, std::byte* packed) {
  std::byte* const numbers = packed + ScaleBytes(spec);
  int64_t n = 0;  // of the layer
  for (const WeightPart& part : parts) {
    for (int64_t i = 0; i < part.out_features; ++i, ++n) {
      const bool out_in = spec.layout == WeightLayout::kOutIn;
      const Output output{.begin = out_in ? i * spec.in_features : i,
                          .stride = out_in ? 1 : part.out_features,
                          .index = n};
      if (spec.weight_type == WeightType::kInt8) {
        PackInt8(spec, part, output, reinterpret_cast<float*>(packed), numbers);
      } else if (spec.weight_type == WeightType::kInt4) {
        PackInt4(spec, part, output, reinterpret_cast<ScaleAndZero*>(packed), numbers);
      } else if (spec.weight_type == WeightType::kFp8) {
        PackFp8(spec, part, output, numbers);
      } else {
        for (int64_t k = 0; k < spec.in_features; ++k) {
          Store(ElementType(spec.weight_type), numbers, n * spec.in_features + k,
                Load(part.dtype, part.data, output.begin + k * output.stride));
        }
      }
    }
  }
}

std::unique_ptr<LinearOp> ReferencePrepare(const LinearSpec& spec, const std::byte* packed) {
  return std::make_unique<ReferenceLinearOp>(spec, packed);
}

void ReferenceLinear(const HostLinearArgs& args) {
  const auto* op = dynamic_cast<const ReferenceLinearOp*>(args.op);
  TANDEM_CHECK(op != nullptr) << "a linear layer prepared by another backend";
  const LinearSpec& spec = op->spec();
  const int64_t in = spec.in_features;
  const bool int4 = spec.weight_type == WeightType::kInt4;
  for (int64_t r = 0; r < args.num_rows; ++r) {
    const auto output = [&](int64_t n) {
      const Operands of{spec,          args.input, r * in,
                        op->numbers(), n * in,     int4 ? op->groups(n) : nullptr};
      float sum = spec.segmented ? *SegmentTree(of, 0, kNumLinearSegments) : Dot(of, 0, in);
      if (spec.weight_type == WeightType::kInt8) sum = sum * op->scale(n);
      return args.bias == nullptr ? sum : sum + args.bias[n];
    };
    for (int64_t n = 0; n < spec.columns(); ++n) {
      const int64_t at = r * spec.columns() + n;
      float y = output(n);
      if (spec.activation) y = Activated(*spec.activation, y);
      if (spec.gated) y = y * output(spec.columns() + n);
      if (args.adds_to_output) y = Load(DType::kF32, args.output, at) + y;
      Store(spec.output_dtype, args.output, at, y);
    }
  }
}

}  // namespace tandem
