#include "kernels/cpu/attention_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const Bf16AttentionTable kAvx512Bf16AttentionDot =
    MakeBf16AttentionTable<DotPolicies, 12, 12, 24>();
constinit const Bf16AttentionTable kAvx512Bf16AttentionFma =
    MakeBf16AttentionTable<MulAddPolicies</*kOddFirst=*/true>, 12, 8, 24>();

}  // namespace tandem
