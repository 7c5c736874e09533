// A linear layer on one device, from its weights to its outputs.

#ifndef TANDEM_TESTS_KERNELS_LINEAR_LAYER_H_
#define TANDEM_TESTS_KERNELS_LINEAR_LAYER_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/kernels/kernel_test_support.h"

namespace tandem {

struct Layer {
  PinnedBuffer packed;
  DeviceBuffer placed;
  std::unique_ptr<LinearOp> op;  // Null if something failed.
};

inline void MakeLayer(TestDevice& device, const LinearSpec& spec,
                      const std::vector<WeightPart>& parts, Layer* layer) {
  const auto format = device.backend().GetPackedFormat(spec);
  ASSERT_TRUE(format.ok()) << format.status();
  auto buffer = device.backend().AllocatePinned(format->size_bytes);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  layer->packed = *std::move(buffer);
  const std::span<std::byte> packed(layer->packed.data(), format->size_bytes);
  // What was in the memory must not matter.
  std::memset(packed.data(), 0xFF, packed.size());
  ASSERT_OK(device.backend().PackLinear(spec, parts, packed));
  auto placed = device.backend().PlaceWeights(packed);
  ASSERT_TRUE(placed.ok()) << placed.status();
  layer->placed = *std::move(placed);
  auto op = device.backend().PrepareLinear(spec, layer->placed.data(), packed.size());
  ASSERT_TRUE(op.ok()) << op.status();
  layer->op = *std::move(op);
}

// Rows of its compute type by a layer whose outputs are f32.
inline std::vector<float> Multiply(TestDevice& device, const Layer& layer, const void* input,
                                   int64_t rows, const float* bias = nullptr) {
  std::vector<float> output(rows * layer.op->spec().out_features);
  const absl::Status status = device.Linear({.op = layer.op.get(),
                                             .input = input,
                                             .bias = bias,
                                             .output = output.data(),
                                             .num_rows = rows});
  EXPECT_TRUE(status.ok()) << status;
  return output;
}

// What a layer with these weights gives for rows of its compute type, as many as `input` has.
// Nothing if something failed.
inline std::vector<std::byte> RunLinear(TestDevice& device, const LinearSpec& spec,
                                        const WeightPart& weights,
                                        const std::vector<std::byte>& input,
                                        const float* bias = nullptr) {
  Layer layer;
  MakeLayer(device, spec, {weights}, &layer);
  if (layer.op == nullptr) return {};
  const auto rows =
      static_cast<int64_t>(input.size() / SizeOf(spec.compute_dtype)) / spec.in_features;
  std::vector<std::byte> output(rows * spec.out_features * SizeOf(spec.output_dtype));
  const absl::Status status = device.Linear({.op = layer.op.get(),
                                             .input = input.data(),
                                             .bias = bias,
                                             .output = output.data(),
                                             .num_rows = rows});
  EXPECT_TRUE(status.ok()) << status;
  return output;
}

// The largest sums of 8 bits, of either sign, of the longest row.
inline void ExpectTheLargestInt8Sums(TestDevice& device) {
  const LinearSpec spec{.in_features = 1 << 17,
                        .out_features = 2,
                        .weight_type = WeightType::kInt8,
                        .compute_dtype = DType::kF32,
                        .output_dtype = DType::kF32};
  std::vector<float> weights(2 * spec.in_features, 127.0f);
  std::fill_n(weights.begin(), spec.in_features, -127.0f);
  const std::vector<float> input(spec.in_features, 127.0f);
  Layer layer;
  ASSERT_NO_FATAL_FAILURE(MakeLayer(device, spec, {{weights.data(), 2, DType::kF32}}, &layer));
  const auto sum = static_cast<float>(int64_t{127} * 127 << 17);
  EXPECT_EQ(Multiply(device, layer, input.data(), 1), (std::vector<float>{-sum, sum}));
}

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_LINEAR_LAYER_H_
