#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const std::array<GemmKernels, 4> kNeonDotGemm = {
    Gemm<SignedDotInt8Policy, 2, 6, 6, kCachedUnits>::Table<float>(),
    Gemm<SignedDotInt8Policy, 2, 6, 6, kCachedUnits>::Table<uint16_t>(),
    Gemm<Int4Policy, 2, 4, 4, kCachedUnits>::Table<float>(),
    Gemm<Int4Policy, 2, 4, 4, kCachedUnits>::Table<uint16_t>(),
};

}  // namespace tandem
