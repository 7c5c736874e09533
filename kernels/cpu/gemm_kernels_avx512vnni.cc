#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const std::array<GemmKernels, 4> kAvx512VnniGemm = {
    Gemm<DotInt8Policy, 2, 12, 24, 0>::Table<float>(),
    Gemm<DotInt8Policy, 2, 12, 24, 0>::Table<uint16_t>(),
    Gemm<Int4Policy, 2, 8, 24, 0>::Table<float>(),
    Gemm<Int4Policy, 2, 8, 24, 0>::Table<uint16_t>(),
};

}  // namespace tandem
