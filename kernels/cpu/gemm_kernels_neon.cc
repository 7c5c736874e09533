#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmTable kNeonGemm = AllKernels<TileSize{6, 6}, TileSize{4, 4}, kCachedUnits>();

}  // namespace tandem
