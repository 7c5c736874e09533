#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmKernels kNeonGemmF32 = Gemm<F32Policy, 2, 6, 6, kCachedUnits>::Table<float>();
constinit const GemmKernels kNeonGemmBf16 =
    Gemm<MulAddBf16Policy, 2, 6, 6, kCachedUnits>::Table<uint16_t>();
constinit const GemmKernels kNeonGemmInt8F32 =
    Gemm<PairInt8Policy, 2, 6, 6, kCachedUnits>::Table<float>();
constinit const GemmKernels kNeonGemmInt8Bf16 =
    Gemm<PairInt8Policy, 2, 6, 6, kCachedUnits>::Table<uint16_t>();
constinit const GemmKernels kNeonGemmInt4F32 =
    Gemm<Int4Policy, 2, 4, 4, kCachedUnits>::Table<float>();
constinit const GemmKernels kNeonGemmInt4Bf16 =
    Gemm<Int4Policy, 2, 4, 4, kCachedUnits>::Table<uint16_t>();

}  // namespace tandem
