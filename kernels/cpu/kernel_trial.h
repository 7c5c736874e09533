// Two ways to the same sums, tried on one task when a process starts: whether the bits are the same
// and which is faster on this very machine.

#ifndef TANDEM_KERNELS_CPU_KERNEL_TRIAL_H_
#define TANDEM_KERNELS_CPU_KERNEL_TRIAL_H_

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/probe/hostile_numbers.h"

namespace tandem {

// What is multiplied: `rows` rows of `inputs` inputs, [rows, inputs] in what the kernels compute
// in, and packed panels with `outputs` outputs. Outputs are f32.
struct TrialTask {
  const void* input;
  size_t input_row_bytes;
  int rows;
  int64_t inputs;
  const std::byte* panels;
  int64_t outputs;
  bool segmented = false;
};

// The task as `gemm` computes it. Both outlive this. The calling thread's floating-point
// environment is that of kernels.
class KernelTrial {
 public:
  KernelTrial(const GemmKernels& gemm, const TrialTask& trial)
      : gemm_(gemm), output_(trial.rows * trial.outputs) {
    const int64_t row_bytes = gemm.RowBytes(trial.inputs, /*groups=*/0);
    packed_rows_.resize(trial.rows * row_bytes);
    const RowTiles tiles = MakeRowTiles(trial.rows, gemm.max_tile_rows);
    for (int64_t tile = 0; tile < tiles.count; ++tile) {
      const int64_t row = tiles.begin(tile);
      for (int segment = 0; segment < PackTask::NumSegments(trial.segmented); ++segment) {
        gemm.pack_rows(
            {.input = static_cast<const std::byte*>(trial.input) + row * trial.input_row_bytes,
             .in_features = trial.inputs,
             .segmented = trial.segmented,
             .segment = segment,
             .group = 0,
             .rows = tiles.rows(tile),
             .packed = packed_rows_.data() + row * row_bytes,
             .outliers = {}});
      }
    }
    task_ = {.activations = packed_rows_.data(),
             .num_rows = trial.rows,
             .panels = trial.panels,
             .in_features = trial.inputs,
             .group = 0,
             .segmented = trial.segmented,
             .bias = nullptr,
             .output = output_.data(),
             .output_stride = trial.outputs,
             .num_outputs = trial.outputs,
             .output_dtype = DType::kF32};
    gemm.run(task_);
  }

  // All NaNs count as one.
  bool HasBitsOf(const KernelTrial& other) const {
    return std::equal(output_.begin(), output_.end(), other.output_.begin(), other.output_.end(),
                      [](float a, float b) {
                        return OneNan(std::bit_cast<uint32_t>(a)) ==
                               OneNan(std::bit_cast<uint32_t>(b));
                      });
  }

  // The shortest of some runs takes so long.
  double Seconds() const {
    double best = std::numeric_limits<double>::infinity();
    for (int run = 0; run < 12; ++run) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 4; ++i) gemm_.run(task_);
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      best = std::min(best, elapsed.count());
    }
    return best;
  }

 private:
  const GemmKernels& gemm_;
  std::vector<std::byte> packed_rows_;
  std::vector<float> output_;
  GemmTask task_;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_KERNEL_TRIAL_H_
