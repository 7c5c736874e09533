#include "kernels/cpu/attention_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const AttentionKernels kNeonAttentionF32 =
    Attention<F32Policy, float, DType::kF32, 6, 6>::Table();
constinit const AttentionKernels kNeonAttentionBf16 =
    Attention<MulAddBf16Policy, uint16_t, DType::kBF16, 6, 6>::Table();

}  // namespace tandem
