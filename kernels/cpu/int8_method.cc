#include <array>
#include <bit>
#include <vector>

#include "kernels/cpu/kernel_table_x86.h"
#include "kernels/cpu/kernel_trial.h"
#include "kernels/support/float_environment.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"

namespace tandem {
namespace {

// All weights fit the second-level cache. The last block of inputs is not full, and the last
// panel's last outputs are none.
constexpr int64_t kLayerInputs = 1000;
constexpr int64_t kLayerOutputs = 150;
constexpr int kPanelOutputs = 32;
constexpr int kLayerRows = 50;

struct Layer {
  std::vector<uint16_t> rows;     // bf16
  std::vector<std::byte> panels;  // 128 too high, and scales
};

Layer MakeLayer() {
  Random random(1);
  Layer layer;
  for (int64_t i = 0; i < kLayerRows * kLayerInputs; ++i) {
    // Some rows have a number far above the others, which are 0 then.
    const double far = i % kLayerInputs == 17 && random.Chance(0.3) ? 4096.0 : 1.0;
    layer.rows.push_back(ToBfloat16(static_cast<float>((random.Unit() * 2 - 1) * far)).bits);
  }
  for (int64_t first = 0; first < kLayerOutputs; first += kPanelOutputs) {
    for (int64_t i = 0; i < kLayerInputs * kPanelOutputs; ++i) {
      const bool highest = random.Chance(0.1);
      layer.panels.push_back(static_cast<std::byte>(highest ? 255 : 1 + random.Below(255)));
    }
    for (int i = 0; i < kPanelOutputs; ++i) {
      const auto scale =
          std::bit_cast<std::array<std::byte, 4>>(static_cast<float>(random.Unit()) + 0.01f);
      layer.panels.insert(layer.panels.end(), scale.begin(), scale.end());
    }
  }
  return layer;
}

}  // namespace

Int8Method PickInt8Method(const GemmKernels& dot, const GemmKernels& tiles) {
  const KernelFloatScope scope;
  const Layer layer = MakeLayer();
  TrialTask task{.input = layer.rows.data(),
                 .input_row_bytes = kLayerInputs * 2,
                 .rows = 0,
                 .inputs = kLayerInputs,
                 .panels = layer.panels.data(),
                 .outputs = kLayerOutputs};
  // Tiles that are full, that are not and differ, and a tile alone.
  for (const int rows : {32, 35, kLayerRows, 7}) {
    for (const bool segmented : {false, true}) {
      task.rows = rows;
      task.segmented = segmented;
      if (KernelTrial(tiles, task).HasBitsOf(KernelTrial(dot, task))) continue;
      LogWarning("tiles of AMX and vpdpbusd give different sums here: vpdpbusd it is");
      return Int8Method::kDot;
    }
  }
  // With the fewest rows that tiles would get, which gain least.
  task.rows = static_cast<int>(kTileRowsFrom);
  task.segmented = false;
  const double by_dot = KernelTrial(dot, task).Seconds();
  return KernelTrial(tiles, task).Seconds() < by_dot ? Int8Method::kTiles : Int8Method::kDot;
}

}  // namespace tandem
