#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmKernels kAvx512GemmF32 = Gemm<F32Policy, 2, 12, 24, 0>::Table<float>();
constinit const GemmKernels kAvx512GemmBf16 =
    Gemm<MulAddBf16Policy, 2, 12, 24, 0>::Table<uint16_t>();
constinit const GemmKernels kAvx512GemmInt8F32 = Gemm<PairInt8Policy, 2, 12, 24, 0>::Table<float>();
constinit const GemmKernels kAvx512GemmInt8Bf16 =
    Gemm<PairInt8Policy, 2, 12, 24, 0>::Table<uint16_t>();
constinit const GemmKernels kAvx512GemmInt4F32 = Gemm<Int4Policy, 2, 8, 24, 0>::Table<float>();
constinit const GemmKernels kAvx512GemmInt4Bf16 = Gemm<Int4Policy, 2, 8, 24, 0>::Table<uint16_t>();

}  // namespace tandem
