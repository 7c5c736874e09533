#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const std::array<GemmKernels, 4> kNeonDotGemm =
    IntegerKernels<SignedDotInt8Policy, TileSize{6, 6}, TileSize{4, 4}, kCachedUnits>();

}  // namespace tandem
