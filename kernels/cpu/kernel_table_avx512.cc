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

Bf16Method BestBf16Method() {
  static const Bf16Method best = PickBf16Method(kAvx512GemmBf16Dot, kAvx512GemmBf16Fma);
  return best;
}

}  // namespace tandem
