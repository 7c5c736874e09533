#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmKernels kNeonDotGemmInt8F32 =
    Gemm<SignedDotInt8Policy, 2, 6, 6, kCachedUnits>::Table<float>();
constinit const GemmKernels kNeonDotGemmInt8Bf16 =
    Gemm<SignedDotInt8Policy, 2, 6, 6, kCachedUnits>::Table<uint16_t>();
constinit const GemmKernels kNeonDotGemmInt4F32 =
    Gemm<Int4Policy, 2, 4, 4, kCachedUnits>::Table<float>();
constinit const GemmKernels kNeonDotGemmInt4Bf16 =
    Gemm<Int4Policy, 2, 4, 4, kCachedUnits>::Table<uint16_t>();

}  // namespace tandem
