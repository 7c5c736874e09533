#include <vector>

#include "kernels/cpu/kernel_table_x86.h"
#include "kernels/cpu/kernel_trial.h"
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

}  // namespace

Bf16Method PickBf16Method(const GemmKernels& dot, const GemmKernels& fma) {
  const KernelFloatScope scope;
  const Tile tile = MakeTile();
  const TrialTask task{.input = tile.rows.data(),
                       .input_row_bytes = kInputs * 2,
                       .rows = kRows,
                       .inputs = kInputs,
                       .panels = reinterpret_cast<const std::byte*>(tile.panel.data()),
                       .outputs = kOutputs};
  const KernelTrial by_dot(dot, task), by_fma(fma, task);
  if (!by_fma.HasBitsOf(by_dot)) {
    LogWarning("vdpbf16ps and fused multiply-adds give different bits here: vdpbf16ps it is");
    return Bf16Method::kDot;
  }
  return by_dot.Seconds() <= by_fma.Seconds() ? Bf16Method::kDot : Bf16Method::kFma;
}

}  // namespace tandem
