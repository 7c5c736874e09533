#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmTable kAvx512Gemm = AllKernels<TileSize{12, 24}, TileSize{8, 24}, 0>();

}  // namespace tandem
