#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

// As many as 16 KiB of a panel hold.
constexpr int64_t kNeonDotChunkUnits = 16 * 1024 / (2 * 64);

constinit const GemmKernels kNeonDotGemmInt8F32 =
    Gemm<SignedDotInt8Policy, 2, 6, 6, kNeonDotChunkUnits>::Table<float>();
constinit const GemmKernels kNeonDotGemmInt8Bf16 =
    Gemm<SignedDotInt8Policy, 2, 6, 6, kNeonDotChunkUnits>::Table<uint16_t>();
constinit const GemmKernels kNeonDotGemmInt4F32 =
    Gemm<Int4Policy, 2, 4, 4, kNeonDotChunkUnits>::Table<float>();
constinit const GemmKernels kNeonDotGemmInt4Bf16 =
    Gemm<Int4Policy, 2, 4, 4, kNeonDotChunkUnits>::Table<uint16_t>();

}  // namespace tandem
