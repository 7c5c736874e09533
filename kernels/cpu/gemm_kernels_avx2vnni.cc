#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmKernels kAvx2VnniGemmInt8F32 =
    Gemm<DotInt8Policy, 2, 6, 6, kCachedUnits>::Table<float>();
constinit const GemmKernels kAvx2VnniGemmInt8Bf16 =
    Gemm<DotInt8Policy, 2, 6, 6, kCachedUnits>::Table<uint16_t>();
constinit const GemmKernels kAvx2VnniGemmInt4F32 =
    Gemm<Int4Policy, 2, 3, 4, kCachedUnits>::Table<float>();
constinit const GemmKernels kAvx2VnniGemmInt4Bf16 =
    Gemm<Int4Policy, 2, 3, 4, kCachedUnits>::Table<uint16_t>();

}  // namespace tandem
