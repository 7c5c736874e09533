#include "kernels/reference/reference_linear.h"

#include <optional>
#include <string>

#include "kernels/reference/numbers.h"
#include "runtime/base/check.h"

namespace tandem {
namespace {

class ReferenceLinearOp final : public LinearOp {
 public:
  ReferenceLinearOp(const LinearSpec& spec, const std::byte* packed)
      : LinearOp(spec), packed_(packed) {}
  const std::byte* packed() const { return packed_; }

 private:
  const std::byte* const packed_;
};

// One accumulator, k ascending.
float Dot(const LinearSpec& spec, const void* x, int64_t x_begin, const void* w, int64_t w_begin,
          int64_t count) {
  const DType weight = ElementType(spec.weight_type);
  float sum = 0.0f;
  for (int64_t k = 0; k < count; ++k) {
    sum = sum + Load(spec.compute_dtype, x, x_begin + k) * Load(weight, w, w_begin + k);
  }
  return sum;
}

// The pairwise tree over segments [first, first + count); nothing if all of them are empty.
std::optional<float> SegmentTree(const LinearSpec& spec, const void* x, int64_t x_begin,
                                 const void* w, int64_t w_begin, int first, int count) {
  if (count == 1) {
    const int64_t begin = LinearSegmentBegin(spec.in_features, first);
    const int64_t end = LinearSegmentBegin(spec.in_features, first + 1);
    if (begin == end) return std::nullopt;
    return Dot(spec, x, x_begin + begin, w, w_begin + begin, end - begin);
  }
  const auto left = SegmentTree(spec, x, x_begin, w, w_begin, first, count / 2);
  const auto right = SegmentTree(spec, x, x_begin, w, w_begin, first + count / 2, count / 2);
  if (!left) return right;
  if (!right) return left;
  return *left + *right;
}

}  // namespace

PackedFormat ReferencePackedFormat(const LinearSpec& spec) {
  return {.id = std::string("reference.1.") + NameOf(spec.weight_type),
          .size_bytes = static_cast<size_t>(spec.in_features * spec.out_features) *
                        SizeOf(ElementType(spec.weight_type))};
}

void ReferencePack(const LinearSpec& spec, std::span<const WeightPart> parts, std::byte* packed) {
  int64_t first = 0;
  for (const WeightPart& part : parts) {
    for (int64_t n = 0; n < part.out_features; ++n) {
      for (int64_t k = 0; k < spec.in_features; ++k) {
        const int64_t from = spec.layout == WeightLayout::kOutIn ? n * spec.in_features + k
                                                                 : k * part.out_features + n;
        Store(ElementType(spec.weight_type), packed, (first + n) * spec.in_features + k,
              Load(part.dtype, part.data, from));
      }
    }
    first += part.out_features;
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
      float sum = spec.segmented ? *SegmentTree(spec, args.input, r * in, op->packed(), n * in, 0,
                                                kNumLinearSegments)
                                 : Dot(spec, args.input, r * in, op->packed(), n * in, in);
      if (args.bias != nullptr) sum = sum + args.bias[n];
      Store(spec.output_dtype, args.output, r * spec.out_features + n, sum);
    }
  }
}

}  // namespace tandem
