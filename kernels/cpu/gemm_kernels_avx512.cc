#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmTable kAvx512Gemm = {
    Gemm<F32Policy, 2, 12, 24, 0>::Table<float>(),
    Gemm<MulAddBf16Policy, 2, 12, 24, 0>::Table<uint16_t>(),
    Gemm<PairInt8Policy, 2, 12, 24, 0>::Table<float>(),
    Gemm<PairInt8Policy, 2, 12, 24, 0>::Table<uint16_t>(),
    Gemm<Int4Policy, 2, 8, 24, 0>::Table<float>(),
    Gemm<Int4Policy, 2, 8, 24, 0>::Table<uint16_t>(),
};

}  // namespace tandem
