#include "kernels/cpu/gemm_kernels.inc.h"
#include "kernels/cpu/kernel_tables_isa.h"

namespace tandem {

constinit const GemmKernels kAvx2GemmF32 = Gemm<F32Policy, 2, 6, 6, 128>::Table<float>();
constinit const GemmKernels kAvx2GemmBf16 = Gemm<MulAddBf16Policy, 2, 6, 6, 128>::Table<uint16_t>();

}  // namespace tandem
