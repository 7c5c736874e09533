#include "kernels/cpu/kernel_table.h"

#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

const KernelTable& GenericKernels() {
  static const KernelTable table{
      .isa = "generic",
      .rows = kGenericRows,
      .gemm = {kGenericGemmF32, kGenericGemmBf16, kGenericGemmInt8F32, kGenericGemmInt8Bf16,
               kGenericGemmInt4F32, kGenericGemmInt4Bf16},
      .f32_attention = kGenericAttentionF32,
      .bf16_attention = kGenericAttentionBf16};
  return table;
}

}  // namespace tandem
