#include "kernels/cpu/attention_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const Bf16AttentionTable kAvx512Bf16AttentionDot =
    MakeBf16AttentionTable<DotBf16Policy, DotWidenedInt8Policy, 12, 8, 24>();
constinit const Bf16AttentionTable kAvx512Bf16AttentionFma =
    MakeBf16AttentionTable<MulAddBf16Policy, WidenedInt8Policy<true>, 12, 8, 24>();

}  // namespace tandem
