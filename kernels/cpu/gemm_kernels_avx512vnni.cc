#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmKernels kAvx512VnniGemmInt8F32 =
    Gemm<DotInt8Policy, 2, 12, 24, 0>::Table<float>();
constinit const GemmKernels kAvx512VnniGemmInt8Bf16 =
    Gemm<DotInt8Policy, 2, 12, 24, 0>::Table<uint16_t>();
constinit const GemmKernels kAvx512VnniGemmInt4F32 = Gemm<Int4Policy, 2, 8, 24, 0>::Table<float>();
constinit const GemmKernels kAvx512VnniGemmInt4Bf16 =
    Gemm<Int4Policy, 2, 8, 24, 0>::Table<uint16_t>();

}  // namespace tandem
