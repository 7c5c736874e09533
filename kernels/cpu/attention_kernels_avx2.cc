#include "kernels/cpu/attention_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const F32AttentionTable kAvx2AttentionF32 = MakeF32AttentionTable<12, 12, 6>();
constinit const Bf16AttentionTable kAvx2AttentionBf16 =
    MakeBf16AttentionTable<MulAddPolicies</*kOddFirst=*/true>, 12, 12, 6>();

}  // namespace tandem
