#include <sys/auxv.h>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {
namespace {

// The baseline of the architecture has NEON, and rows multiply and add apart: the generic ones do.
const KernelTable* NeonKernels() {
  static const KernelTable table{.isa = "neon",
                                 .rows = kGenericRows,
                                 .gemm = {kNeonGemmF32, kNeonGemmBf16, kNeonGemmInt8F32,
                                          kNeonGemmInt8Bf16, kNeonGemmInt4F32, kNeonGemmInt4Bf16},
                                 .f32_attention = kNeonAttentionF32,
                                 .bf16_attention = kNeonAttentionBf16};
  return &table;
}

const KernelTable* NeonDotKernels() {
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return nullptr;
  static const KernelTable table{
      .isa = "neondot",
      .rows = kGenericRows,
      .gemm = {kNeonGemmF32, kNeonGemmBf16, kNeonDotGemmInt8F32, kNeonDotGemmInt8Bf16,
               kNeonDotGemmInt4F32, kNeonDotGemmInt4Bf16},
      .f32_attention = kNeonAttentionF32,
      .bf16_attention = kNeonAttentionBf16};
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

const KernelTable* Avx512Bf16Kernels(Bf16Method, Int8Method) { return nullptr; }
Bf16Method PickedBf16Method() { return Bf16Method::kDot; }
Int8Method PickedInt8Method() { return Int8Method::kDot; }

}  // namespace tandem
