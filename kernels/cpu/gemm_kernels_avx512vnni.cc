#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const std::array<GemmKernels, 4> kAvx512VnniGemm =
    IntegerKernels<DotInt8Policy, TileSize{12, 24}, TileSize{8, 24}, 0>();

}  // namespace tandem
