#include "kernels/cpu/amx_gemm.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmKernels kAmxGemmBf16 = TileGemm<NativeTiles, false>::Table<uint16_t>();
constinit const GemmKernels kAmxGemmInt8F32 = TileGemm<NativeTiles, true>::Table<float>();
constinit const GemmKernels kAmxGemmInt8Bf16 = TileGemm<NativeTiles, true>::Table<uint16_t>();

}  // namespace tandem
