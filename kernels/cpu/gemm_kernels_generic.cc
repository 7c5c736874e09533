#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmTable kGenericGemm = AllKernels<TileSize{2, 2}, TileSize{2, 2}, 0>();

}  // namespace tandem
