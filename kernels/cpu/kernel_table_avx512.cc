#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "kernels/cpu/float_environment.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {
namespace {

bool MachineHasAvx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512bf16") != 0;
}

// Seconds of the shortest of some runs over numbers that fit the first-level cache.
double SecondsOf(const GemmKernels& gemm) {
  constexpr int kInputs = 256;
  constexpr int kRows = 12;
  alignas(64) static std::array<std::byte, kInputs * 32 * 2> panel;
  alignas(64) static std::array<std::byte, kInputs * kRows * 4> activations;
  alignas(64) static std::array<float, kRows * 32> output;
  const GemmTask task{.activations = activations.data(),
                      .num_rows = kRows,
                      .panels = panel.data(),
                      .in_features = kInputs,
                      .segmented = false,
                      .bias = nullptr,
                      .output = output.data(),
                      .output_stride = 32,
                      .num_outputs = 32,
                      .output_dtype = DType::kF32};
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 12; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 4; ++i) gemm.run(task);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count());
  }
  return best;
}

}  // namespace

const KernelTable* Avx512Kernels(Bf16Method method) {
  static const bool available = MachineHasAvx512();
  if (!available) return nullptr;
  static const KernelTable dot{.isa = "avx512",
                               .rows = kAvx512Rows,
                               .gemm = {kAvx512GemmF32, kAvx512GemmBf16Dot},
                               .attention = {kAvx512AttentionF32, kAvx512AttentionBf16Dot}};
  static const KernelTable fma{.isa = "avx512",
                               .rows = kAvx512Rows,
                               .gemm = {kAvx512GemmF32, kAvx512GemmBf16Fma},
                               .attention = {kAvx512AttentionF32, kAvx512AttentionBf16Fma}};
  return method == Bf16Method::kDot ? &dot : &fma;
}

Bf16Method FasterBf16Method() {
  static const Bf16Method faster = [] {
    const KernelFloatScope scope;
    return SecondsOf(kAvx512GemmBf16Dot) <= SecondsOf(kAvx512GemmBf16Fma) ? Bf16Method::kDot
                                                                          : Bf16Method::kFma;
  }();
  return faster;
}

}  // namespace tandem
