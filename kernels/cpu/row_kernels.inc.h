// Row operations over 16 lanes; bit for bit those of kernels/reference. Included once per
// instruction set.

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rms_norm.h"

namespace tandem {
namespace {

void RmsNormRows(const HostRmsNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t at = r * args.features;
    RmsNormRow(args.input + at, args.weight, args.epsilon, args.features, args.output_dtype,
               args.output, at);
  }
}

void LayerNormRows(const HostLayerNormArgs& args, int64_t begin, int64_t end) {
  const int64_t count = args.features;
  const float divisor = static_cast<float>(count);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = args.input + r * count;
    F32x16 sums = {};
    for (int64_t i = 0; i < count; i += kLanes) {
      sums = sums + LoadLanes(DType::kF32, x, i, LanesAt(i, count));
    }
    const float mean = SumOf(sums) / divisor;
    const int64_t whole = count / kLanes * kLanes;
    F32x16 squares = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
      const F32x16 v = LoadF32(x + i) - mean;
      squares = squares + v * v;
    }
    if (whole < count) {
      const int lanes = static_cast<int>(count - whole);
      // Lanes past the end must add 0, not mean².
      float centred[kLanes] = {};
      StoreF32Tail(centred, LoadF32Tail(x + whole, lanes) - mean, lanes);
      const F32x16 v = LoadF32(centred);
      squares = squares + v * v;
    }
    const float variance = SumOf(squares) / divisor;
    const float scale = 1.0f / __builtin_sqrtf(variance + args.epsilon);
    for (int64_t i = 0; i < count; i += kLanes) {
      const int lanes = LanesAt(i, count);
      const F32x16 weight = LoadLanes(DType::kF32, args.weight, i, lanes);
      const F32x16 bias = LoadLanes(DType::kF32, args.bias, i, lanes);
      const F32x16 v = LoadLanes(DType::kF32, x, i, lanes) - mean;
      StoreLanes(args.output_dtype, args.output, r * count + i, (v * scale) * weight + bias, lanes);
    }
  }
}

void AddElements(const HostAddArgs& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int lanes = LanesAt(i, end);
    const F32x16 sum = LoadLanes(DType::kF32, args.accumulator, i, lanes) +
                       LoadLanes(DType::kF32, args.addend, i, lanes);
    StoreLanes(DType::kF32, args.accumulator, i, sum, lanes);
  }
}

void SoftCapElements(const HostSoftCapArgs& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int lanes = LanesAt(i, end);
    const F32x16 x = LoadLanes(DType::kF32, args.values, i, lanes);
    StoreLanes(DType::kF32, args.values, i, SoftCapOf(x, args.cap), lanes);
  }
}

void EmbeddingRows(const HostEmbeddingArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t from = TokenOf(args, r) * args.features;
    for (int64_t i = 0; i < args.features; i += kLanes) {
      const int lanes = LanesAt(i, args.features);
      F32x16 x = LoadLanes(args.table_dtype, args.table, from + i, lanes);
      if (args.position_table != nullptr) {
        x = x + LoadLanes(args.table_dtype, args.position_table,
                          args.positions[r] * args.features + i, lanes);
      }
      StoreLanes(DType::kF32, args.output, r * args.features + i, x, lanes);
    }
  }
}

constexpr RowKernels kRowKernels = {
    .rms_norm = RmsNormRows,
    .layer_norm = LayerNormRows,
    .add = AddElements,
    .soft_cap = SoftCapElements,
    .embedding = EmbeddingRows,
};

}  // namespace
}  // namespace tandem
