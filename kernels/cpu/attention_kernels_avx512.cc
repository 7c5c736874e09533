#include "kernels/cpu/attention_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const F32AttentionTable kAvx512AttentionF32 = MakeF32AttentionTable<12, 8, 24>();
constinit const Bf16AttentionTable kAvx512AttentionBf16 =
    MakeBf16AttentionTable<MulAddPolicies</*kOddFirst=*/true>, 12, 8, 24>();

}  // namespace tandem
