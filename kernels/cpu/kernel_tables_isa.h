// The pieces of each instruction set's table, one file of definitions each. The AVX-512 ones may
// only be touched after a look at the machine (Avx512Kernels).

#ifndef TANDEM_KERNELS_CPU_KERNEL_TABLES_ISA_H_
#define TANDEM_KERNELS_CPU_KERNEL_TABLES_ISA_H_

#include "kernels/cpu/kernel_table.h"

namespace tandem {

extern const RowKernels kGenericRows;
extern const GemmKernels kGenericGemmF32;
extern const GemmKernels kGenericGemmBf16;
extern const AttentionKernels kGenericAttentionF32;
extern const AttentionKernels kGenericAttentionBf16;

extern const RowKernels kAvx512Rows;
extern const GemmKernels kAvx512GemmF32;
extern const GemmKernels kAvx512GemmBf16Dot;
extern const GemmKernels kAvx512GemmBf16Fma;
extern const AttentionKernels kAvx512AttentionF32;
extern const AttentionKernels kAvx512AttentionBf16Dot;
extern const AttentionKernels kAvx512AttentionBf16Fma;

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_KERNEL_TABLES_ISA_H_
