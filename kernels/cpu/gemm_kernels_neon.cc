#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmTable kNeonGemm = {
    Gemm<F32Policy, 2, 6, 6, kCachedUnits>::Table<float>(),
    Gemm<MulAddBf16Policy, 2, 6, 6, kCachedUnits>::Table<uint16_t>(),
    Gemm<PairInt8Policy, 2, 6, 6, kCachedUnits>::Table<float>(),
    Gemm<PairInt8Policy, 2, 6, 6, kCachedUnits>::Table<uint16_t>(),
    Gemm<Int4Policy, 2, 4, 4, kCachedUnits>::Table<float>(),
    Gemm<Int4Policy, 2, 4, 4, kCachedUnits>::Table<uint16_t>(),
};

}  // namespace tandem
