#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

const KernelTable& GenericKernels() {
  static const KernelTable table{.isa = "generic",
                                 .rows = kGenericRows,
                                 .gemm = kGenericGemm,
                                 .f32_attention = kGenericAttentionF32,
                                 .bf16_attention = kGenericAttentionBf16};
  return table;
}

}  // namespace tandem
