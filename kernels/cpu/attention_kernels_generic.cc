#include "kernels/cpu/attention_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const AttentionKernels kGenericAttentionF32 =
    Attention<F32Policy, float, DType::kF32, 2, 2>::Table();
constinit const AttentionKernels kGenericAttentionBf16 =
    Attention<MulAddBf16Policy, uint16_t, DType::kBF16, 2, 2>::Table();

}  // namespace tandem
