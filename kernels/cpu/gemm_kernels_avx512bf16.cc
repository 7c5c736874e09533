#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmKernels kAvx512Bf16GemmDot =
    Gemm<DotBf16Policy, 2, 12, 24, 0>::Table<uint16_t>();

}  // namespace tandem
