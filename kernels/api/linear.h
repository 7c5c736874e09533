// Linear layers: y = x Wᵀ + b with weights packed once.
//
// Packing is apart from preparing, so that the packed bytes can be cached on disk by content and
// memory-mapped by every worker of a machine:
//
//   format = backend.GetPackedFormat(spec)            which and how many bytes
//            backend.PackLinear(spec, parts, packed)  fill them, once
//   op     = backend.PrepareLinear(spec, packed)      at load
//            backend.Linear({.op = op.get(), ...})    in a step
//
// What weights are kept in and what is computed in are apart: a new WeightType is a packing and an
// inner loop of each backend that has it, and nothing between the checkpoint and there.
//
// One fp32 accumulator per output element, inputs ascending, whatever the number of rows
// (docs/numerics.md, "Matrix products").

#ifndef TANDEM_KERNELS_API_LINEAR_H_
#define TANDEM_KERNELS_API_LINEAR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "kernels/api/device_ptr.h"
#include "kernels/api/dtype.h"
#include "kernels/api/rows.h"
#include "runtime/base/math.h"

namespace tandem {

// How a checkpoint stores a weight matrix.
enum class WeightLayout : uint8_t {
  kOutIn,  // [N, K] row-major: Hugging Face Linear
  kInOut,  // [K, N] row-major: GPT-2 Conv1D
};

inline constexpr int64_t kInt4Groups[] = {32, 64, 128};

// K inputs, N outputs.
struct LinearSpec {
  int64_t in_features;     // K, 1 to 2^20; 2^17 with weights of type kInt8
  int64_t out_features;    // N, 1 to 2^24
  WeightType weight_type;  // of packed weights
  DType compute_dtype;     // of inputs
  DType output_dtype;      // kF32, or compute_dtype (rounded once, after the bias)
  WeightLayout layout = WeightLayout::kOutIn;
  // Output and down projections: the sum over K is cut where LinearSegmentBegin says, each
  // piece has its own accumulator, and the pieces are added in a fixed pairwise tree, so that a
  // rank of a tensor-parallel group computes whole pieces.
  bool segmented = false;
  bool scaled = false;  // Every part has scales (WeightPart).
  // Inputs of an output that have a scale together, and of kInt4 a zero: of that one of
  // kInt4Groups, of kFp8 any number from 1 on; others have none.
  int64_t group = 0;
  // Inputs of at least this magnitude are not made 8 bits: row by row they are multiplied as they
  // are (docs/numerics.md). After LLM.int8 (Dettmers et al., 2022). From kMinOutlierThreshold to
  // kMaxOutlierThreshold, or 0: there are none. kInt8 only; packed weights are the same.
  float outlier_threshold = 0;
  // What is stored is function(output), or, of a gated layer, whose first N / 2 outputs are gates
  // and the others ups, function(gate) · up: with the bits of a layer of f32 and these
  // operations behind it, one by one.
  std::optional<ActivationFunction> activation = {};
  bool gated = false;  // With an activation only; N is even.

  // Numbers of a row that are stored.
  int64_t columns() const { return gated ? out_features / 2 : out_features; }
  // Groups of the inputs of an output; the last may be short.
  int64_t groups() const { return group == 0 ? 0 : CeilDiv(in_features, group); }
};

inline constexpr int64_t kMaxInt4Group = kInt4Groups[2];
inline constexpr float kMinOutlierThreshold = 0x1p-126f;
inline constexpr float kMaxOutlierThreshold = 1e6f;

// One tensor of the checkpoint. The parts of a fused projection (Q, K, V; gate, up) stack along N.
struct WeightPart {
  const void* data;      // [out_features, K] or [K, out_features], as LinearSpec::layout says
  int64_t out_features;  // parts sum to N
  DType dtype;           // of `data`; rounded to the weight type if that is narrower
  // What runs of inputs are to be multiplied with, as quantised checkpoints have them:
  // [out_features, K / length of a run]. Empty: `data` has the very numbers. Of kInt4, runs are
  // groups (the last may be short), scales numbers of half precision, and a weight is
  // (q - zero) · scale: `data` is [out_features, K] bytes q from 0 to 15, whatever `dtype` says.
  // Those of kFp8, which always comes so, are groups, too, and a weight is number · scale, rounded
  // to f32 and then to bf16: `data` is [out_features, K] E4m3, whatever `dtype` says.
  std::span<const float> scales = {};
  std::span<const uint8_t> zeros = {};  // 0 to 16, one a scale; kInt4 only.
};

struct PackedFormat {
  std::string id;     // a version of the packed bytes: a cache made under another is packed again
  size_t size_bytes;  // of the layer
  // What a row takes of the device's memory while the layer runs, beside inputs and outputs.
  size_t row_scratch_bytes = 0;
};

// A prepared linear layer; belongs to the backend that made it and outlives nothing of it.
class LinearOp {
 public:
  explicit LinearOp(const LinearSpec& spec) : spec_(spec) {}
  virtual ~LinearOp() = default;
  LinearOp(const LinearOp&) = delete;
  LinearOp& operator=(const LinearOp&) = delete;

  const LinearSpec& spec() const { return spec_; }

 private:
  const LinearSpec spec_;
};

// R rows.
template <template <typename> class P>
struct LinearArgsOf {
  const LinearOp* op;
  P<const void> input;            // [R, K] compute_dtype
  P<const float> bias = nullptr;  // [N], or null
  P<void> output;                 // [R, columns()] output_dtype, overlaps no input
  int64_t num_rows;               // R, may be 0
  // Outputs, which are f32 then and not activated, are added to what is there: the residual
  // stream. The bits are those of a layer and Add behind it.
  bool adds_to_output = false;
  static constexpr auto Pointers(auto& self) {
    return std::tie(self.input, self.bias, self.output);
  }
};
using LinearArgs = LinearArgsOf<DevicePtr>;

inline constexpr int kNumLinearSegments = 8;
inline constexpr int64_t kLinearSegmentMultiple = 128;
static_assert(kLinearSegmentMultiple % kMaxInt4Group == 0);  // Segments have whole groups.

// Where segment `index` (0 to 8) begins: index·K/8 rounded down to a multiple of 128, and K for
// index 8. Segments with equal borders are empty and take no part in the tree.
constexpr int64_t LinearSegmentBegin(int64_t in_features, int index) {
  if (index == kNumLinearSegments) return in_features;
  const int64_t exact = index * in_features / kNumLinearSegments;
  return exact / kLinearSegmentMultiple * kLinearSegmentMultiple;
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_LINEAR_H_
