#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmKernels kGenericGemmF32 = Gemm<F32Policy, 2, 2, 2, 0>::Table<float>();
constinit const GemmKernels kGenericGemmBf16 =
    Gemm<MulAddBf16Policy, 2, 2, 2, 0>::Table<uint16_t>();
constinit const GemmKernels kGenericGemmInt8F32 = Gemm<PairInt8Policy, 2, 2, 2, 0>::Table<float>();
constinit const GemmKernels kGenericGemmInt8Bf16 =
    Gemm<PairInt8Policy, 2, 2, 2, 0>::Table<uint16_t>();
constinit const GemmKernels kGenericGemmInt4F32 = Gemm<Int4Policy, 2, 2, 2, 0>::Table<float>();
constinit const GemmKernels kGenericGemmInt4Bf16 = Gemm<Int4Policy, 2, 2, 2, 0>::Table<uint16_t>();

}  // namespace tandem
