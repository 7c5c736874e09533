#include "kernels/reference/reference_rows.h"

#include <cmath>

#include "kernels/reference/numbers.h"
#include "kernels/support/vector_math.h"

namespace tandem {
namespace {

// Σ term(i) for i in [0, count): lane i % 16, then the tree.
template <typename Term>
float SumInLanes(int64_t count, Term term) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i % kLanes] = lanes[i % kLanes] + term(i);
  return SumLanes(lanes);
}

}  // namespace

void ReferenceEmbedding(const HostEmbeddingArgs& args) {
  for (int64_t r = 0; r < args.num_rows; ++r) {
    const int64_t from = TokenOf(args, r) * args.features;
    for (int64_t e = 0; e < args.features; ++e) {
      float value = Load(args.table_dtype, args.table, from + e);
      if (args.position_table != nullptr) {
        value = value +
                Load(args.table_dtype, args.position_table, args.positions[r] * args.features + e);
      }
      args.output[r * args.features + e] = value;
    }
  }
}

std::vector<float> ReferenceNormRow(const float* x, const float* weight, float epsilon,
                                    int64_t count) {
  const float sum = SumInLanes(count, [&](int64_t i) { return x[i] * x[i]; });
  const float mean = sum / static_cast<float>(count);
  const float scale = 1.0f / std::sqrt(mean + epsilon);
  std::vector<float> y;
  for (int64_t i = 0; i < count; ++i) y.push_back((x[i] * scale) * weight[i]);
  return y;
}

void ReferenceRmsNorm(const HostRmsNormArgs& args) {
  for (int64_t r = 0; r < args.num_rows; ++r) {
    const int64_t at = r * args.features;
    const std::vector<float> y =
        ReferenceNormRow(args.input + at, args.weight, args.epsilon, args.features);
    for (int64_t e = 0; e < args.features; ++e) {
      Store(args.output_dtype, args.output, at + e, y[static_cast<size_t>(e)]);
    }
  }
}

void ReferenceLayerNorm(const HostLayerNormArgs& args) {
  const float count = static_cast<float>(args.features);
  for (int64_t r = 0; r < args.num_rows; ++r) {
    const float* x = args.input + r * args.features;
    const float mean = SumInLanes(args.features, [&](int64_t i) { return x[i]; }) / count;
    const float variance =
        SumInLanes(args.features, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
    const float scale = 1.0f / std::sqrt(variance + args.epsilon);
    for (int64_t e = 0; e < args.features; ++e) {
      Store(args.output_dtype, args.output, r * args.features + e,
            ((x[e] - mean) * scale) * args.weight[e] + args.bias[e]);
    }
  }
}

void ReferenceAdd(const HostAddArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    args.accumulator[i] = args.accumulator[i] + args.addend[i];
  }
}

void ReferenceSoftCap(const HostSoftCapArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) args.values[i] = SoftCap(args.values[i], args.cap);
}

void ReferenceGatherRows(const HostGatherRowsArgs& args) {
  for (int64_t r = 0; r < args.num_rows; ++r) {
    for (int64_t e = 0; e < args.features; ++e) {
      Store(args.dtype, args.output, r * args.features + e,
            Load(args.dtype, args.input, args.rows[r] * args.features + e));
    }
  }
}

}  // namespace tandem
