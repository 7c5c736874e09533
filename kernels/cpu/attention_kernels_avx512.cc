#include "kernels/cpu/attention_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const AttentionKernels kAvx512AttentionF32 =
    Attention<F32Policy, float, DType::kF32, 12, 24>::Table();
constinit const AttentionKernels kAvx512AttentionBf16 =
    Attention<MulAddBf16Policy, uint16_t, DType::kBF16, 12, 24>::Table();

}  // namespace tandem
