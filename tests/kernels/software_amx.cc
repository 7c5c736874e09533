#include "tests/kernels/software_amx.h"

#include "kernels/cpu/amx_gemm.inc.h"
#include "tests/kernels/software_tiles.h"

namespace tandem {

const GemmKernels& SoftwareTilesBf16() {
  static constexpr GemmKernels kGemm = TileGemm<SoftwareTiles, false>::Table<uint16_t>();
  return kGemm;
}

const GemmKernels& SoftwareTilesInt8(DType compute_dtype) {
  static constexpr GemmKernels kF32 = TileGemm<SoftwareTiles, true>::Table<float>();
  static constexpr GemmKernels kBf16 = TileGemm<SoftwareTiles, true>::Table<uint16_t>();
  return compute_dtype == DType::kF32 ? kF32 : kBf16;
}

KernelTable WithSoftwareTiles(const KernelTable& base, bool bf16, int64_t int8_rows_from) {
  KernelTable table = base;
  for (GemmKernels& gemm : table.gemm) {
    if (gemm.weight_type == WeightType::kBF16 && bf16) gemm = SoftwareTilesBf16();
    if (gemm.weight_type != WeightType::kInt8) continue;
    gemm.many_rows = &SoftwareTilesInt8(gemm.compute_dtype);
    gemm.many_rows_from = int8_rows_from;
  }
  return table;
}

}  // namespace tandem
