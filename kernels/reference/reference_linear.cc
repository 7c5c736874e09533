#include "kernels/reference/reference_linear.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/reference/numbers.h"
#include "kernels/support/int8.h"
#include "runtime/base/check.h"

namespace tandem {
namespace {

DType ElementType(WeightType type) { return type == WeightType::kF32 ? DType::kF32 : DType::kBF16; }

// Packed weights are [N, K] numbers; 8 bits come behind the scales of the outputs, [N].
size_t ScaleBytes(const LinearSpec& spec) {
  const bool int8 = spec.weight_type == WeightType::kInt8;
  return int8 ? static_cast<size_t>(spec.out_features) * sizeof(float) : 0;
}

class ReferenceLinearOp final : public LinearOp {
 public:
  ReferenceLinearOp(const LinearSpec& spec, const std::byte* packed)
      : LinearOp(spec), packed_(packed) {}
  const std::byte* numbers() const { return packed_ + ScaleBytes(spec()); }
  float scale(int64_t n) const { return reinterpret_cast<const float*>(packed_)[n]; }

 private:
  const std::byte* const packed_;
};

size_t SizeOfNumber(WeightType type) {
  return type == WeightType::kInt8 ? 1 : SizeOf(ElementType(type));
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
};

// Inputs [begin, begin + count): one accumulator, k ascending. Integers are exact.
float Dot(const Operands& of, int64_t begin, int64_t count) {
  const DType compute = of.spec.compute_dtype;
  if (of.spec.weight_type == WeightType::kInt8) {
    const auto* const w = reinterpret_cast<const int8_t*>(of.w) + of.w_begin + begin;
    const float scale = ScaleOf(compute, of.x, of.x_begin + begin, count);
    int64_t sum = 0;
    for (int64_t k = 0; k < count; ++k) {
      sum += w[k] * ToInt8(Load(compute, of.x, of.x_begin + begin + k), scale);
    }
    return static_cast<float>(sum) * scale;
  }
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

}  // namespace

PackedFormat ReferencePackedFormat(const LinearSpec& spec) {
  return {
      .id = std::string("reference.1.") + NameOf(spec.weight_type),
      .size_bytes = ScaleBytes(spec) + static_cast<size_t>(spec.in_features * spec.out_features) *
                                           SizeOfNumber(spec.weight_type)};
}

void ReferencePack(const LinearSpec& spec, std::span<const WeightPart> parts, std::byte* packed) {
  const bool int8 = spec.weight_type == WeightType::kInt8;
  auto* const scales = reinterpret_cast<float*>(packed);
  std::byte* const numbers = packed + ScaleBytes(spec);
  int64_t n = 0;  // of the layer
  for (const WeightPart& part : parts) {
    for (int64_t i = 0; i < part.out_features; ++i, ++n) {
      const bool out_in = spec.layout == WeightLayout::kOutIn;
      const int64_t begin = out_in ? i * spec.in_features : i;
      const int64_t stride = out_in ? 1 : part.out_features;
      if (int8) scales[n] = ScaleOf(part.dtype, part.data, begin, spec.in_features, stride);
      for (int64_t k = 0; k < spec.in_features; ++k) {
        const float weight = Load(part.dtype, part.data, begin + k * stride);
        const int64_t to = n * spec.in_features + k;
        if (int8) {
          numbers[to] = static_cast<std::byte>(ToInt8(weight, scales[n]));
        } else {
          Store(ElementType(spec.weight_type), numbers, to, weight);
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
  for (int64_t r = 0; r < args.num_rows; ++r) {
    for (int64_t n = 0; n < spec.out_features; ++n) {
      const Operands of{spec, args.input, r * in, op->numbers(), n * in};
      float sum = spec.segmented ? *SegmentTree(of, 0, kNumLinearSegments) : Dot(of, 0, in);
      if (spec.weight_type == WeightType::kInt8) sum = sum * op->scale(n);
      if (args.bias != nullptr) sum = sum + args.bias[n];
      Store(spec.output_dtype, args.output, r * spec.out_features + n, sum);
    }
  }
}

}  // namespace tandem
