#include "kernels/cpu/attention_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const F32AttentionTable kGenericAttentionF32 = MakeF32AttentionTable<2, 2, 2>();
constinit const Bf16AttentionTable kGenericAttentionBf16 =
    MakeBf16AttentionTable<MulAddPolicies</*kOddFirst=*/true>, 2, 2, 2>();

}  // namespace tandem
