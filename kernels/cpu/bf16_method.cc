#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/probe/hostile_numbers.h"
#include "kernels/support/float_environment.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"

namespace tandem {
namespace {

// One tile: its numbers fit the first-level cache.
constexpr int kInputs = 256;
constexpr int kRows = 12;
constexpr int kOutputs = 32;

// Row r has exponents near one place, output n near another, both from the lowest to the highest:
// among the sums are some that underflow, some that overflow, and all between.
struct Tile {
  std::vector<uint16_t> rows;   // [kRows, kInputs]
  std::vector<uint16_t> panel;  // [kInputs / 2, kOutputs, 2]
};

Tile MakeTile() {
  Random random(1);
  const auto number = [&](int exponent) {
    return ToBfloat16(HostileNumber(exponent, &random)).bits;
  };
  Tile tile;
  for (int r = 0; r < kRows; ++r) {
    for (int k = 0; k < kInputs; ++k) tile.rows.push_back(number(254 * r / kRows));
  }
  for (int k = 0; k < kInputs; k += 2) {
    for (int n = 0; n < kOutputs; ++n) {
      for (int i = 0; i < 2; ++i) tile.panel.push_back(number(254 * n / kOutputs));
    }
  }
  return tile;
}

// The tile as one of the methods computes it.
class Trial {
 public:
  Trial(const GemmKernels& gemm, const Tile& tile)
      : gemm_(gemm),
        packed_rows_(kRows * kInputs / gemm.k_per_unit * gemm.activation_unit_bytes),
        output_(kRows * kOutputs),
        task_{.activations = packed_rows_.data(),
              .num_rows = kRows,
              .panels = reinterpret_cast<const std::byte*>(tile.panel.data()),
              .in_features = kInputs,
              .group = 0,
              .segmented = false,
              .bias = nullptr,
              .output = output_.data(),
              .output_stride = kOutputs,
              .num_outputs = kOutputs,
              .output_dtype = DType::kF32} {
    gemm.pack_rows(tile.rows.data(), kInputs, /*segmented=*/false, /*group=*/0, kRows,
                   packed_rows_.data(), /*outliers=*/{});
    gemm.run(task_);
  }

  const std::vector<float>& output() const { return output_; }

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
  const GemmTask task_;
};

bool SameBits(float a, float b) {
  return OneNan(std::bit_cast<uint32_t>(a)) == OneNan(std::bit_cast<uint32_t>(b));
}

}  // namespace

Bf16Method PickBf16Method(const GemmKernels& dot, const GemmKernels& fma) {
  const KernelFloatScope scope;
  const Tile tile = MakeTile();
  const Trial by_dot(dot, tile), by_fma(fma, tile);
  if (!std::equal(by_dot.output().begin(), by_dot.output().end(), by_fma.output().begin(),
                  SameBits)) {
    LogWarning("vdpbf16ps and fused multiply-adds give different bits here: vdpbf16ps it is");
    return Bf16Method::kDot;
  }
  return by_dot.Seconds() <= by_fma.Seconds() ? Bf16Method::kDot : Bf16Method::kFma;
}

}  // namespace tandem
