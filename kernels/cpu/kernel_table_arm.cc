#include <sys/auxv.h>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {
namespace {

// The baseline of the architecture has NEON, and rows multiply and add apart: the generic ones do.
const KernelTable* NeonKernels() {
  static const KernelTable table{.isa = "neon",
                                 .rows = kGenericRows,
                                 .gemm = kNeonGemm,
                                 .f32_attention = kNeonAttentionF32,
                                 .bf16_attention = kNeonAttentionBf16};
  return &table;
}

const KernelTable* NeonDotKernels() {
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return nullptr;
  static const KernelTable table = NeonKernels()->With("neondot", kNeonDotGemm);
  return &table;
}

}  // namespace

std::span<const Isa> KnownIsas() {
  static constexpr Isa kIsas[] = {
      {.name = "neondot", .needs = "NEON's dot products", .kernels = NeonDotKernels},
      {.name = "neon", .needs = "NEON", .kernels = NeonKernels},
      {.name = "generic", .needs = "", .kernels = [] { return &GenericKernels(); }},
  };
  return kIsas;
}

}  // namespace tandem
