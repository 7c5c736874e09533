// The pieces of each instruction set's table, one file of definitions each. Those of an instruction
// set may only be touched after a look at the machine (KnownIsas).

#ifndef TANDEM_KERNELS_CPU_KERNEL_TABLES_ISA_H_
#define TANDEM_KERNELS_CPU_KERNEL_TABLES_ISA_H_

#include "kernels/cpu/kernel_table.h"

namespace tandem {

extern const RowKernels kGenericRows;
extern const GemmKernels kGenericGemmF32;
extern const GemmKernels kGenericGemmBf16;
extern const GemmKernels kGenericGemmInt8F32;
extern const GemmKernels kGenericGemmInt8Bf16;
extern const GemmKernels kGenericGemmInt4F32;
extern const GemmKernels kGenericGemmInt4Bf16;
extern const F32AttentionTable kGenericAttentionF32;
extern const Bf16AttentionTable kGenericAttentionBf16;

extern const RowKernels kAvx2Rows;
extern const GemmKernels kAvx2GemmF32;
extern const GemmKernels kAvx2GemmBf16;
extern const GemmKernels kAvx2GemmInt8F32;
extern const GemmKernels kAvx2GemmInt8Bf16;
extern const GemmKernels kAvx2GemmInt4F32;
extern const GemmKernels kAvx2GemmInt4Bf16;
extern const F32AttentionTable kAvx2AttentionF32;
extern const Bf16AttentionTable kAvx2AttentionBf16;

// What AVX-VNNI adds.
extern const GemmKernels kAvx2VnniGemmInt8F32;
extern const GemmKernels kAvx2VnniGemmInt8Bf16;
extern const GemmKernels kAvx2VnniGemmInt4F32;
extern const GemmKernels kAvx2VnniGemmInt4Bf16;

extern const RowKernels kAvx512Rows;
extern const GemmKernels kAvx512GemmF32;
extern const GemmKernels kAvx512GemmBf16;
extern const GemmKernels kAvx512GemmInt8F32;
extern const GemmKernels kAvx512GemmInt8Bf16;
extern const GemmKernels kAvx512GemmInt4F32;
extern const GemmKernels kAvx512GemmInt4Bf16;
extern const F32AttentionTable kAvx512AttentionF32;
extern const Bf16AttentionTable kAvx512AttentionBf16;

// What AVX-512 VNNI adds.
extern const GemmKernels kAvx512VnniGemmInt8F32;
extern const GemmKernels kAvx512VnniGemmInt8Bf16;
extern const GemmKernels kAvx512VnniGemmInt4F32;
extern const GemmKernels kAvx512VnniGemmInt4Bf16;

// What AVX-512 BF16 adds.
extern const GemmKernels kAvx512Bf16GemmDot;
extern const Bf16AttentionTable kAvx512Bf16AttentionDot;
extern const Bf16AttentionTable kAvx512Bf16AttentionFma;

// What AMX adds, for processes that may use it.
extern const GemmKernels kAmxGemmInt8F32;
extern const GemmKernels kAmxGemmInt8Bf16;
extern const GemmKernels kAmxGemmBf16;

// NEON has no rows of its own: the generic ones use it.
extern const GemmKernels kNeonGemmF32;
extern const GemmKernels kNeonGemmBf16;
extern const GemmKernels kNeonGemmInt8F32;
extern const GemmKernels kNeonGemmInt8Bf16;
extern const GemmKernels kNeonGemmInt4F32;
extern const GemmKernels kNeonGemmInt4Bf16;
extern const F32AttentionTable kNeonAttentionF32;
extern const Bf16AttentionTable kNeonAttentionBf16;

// What NEON's dot products add.
extern const GemmKernels kNeonDotGemmInt8F32;
extern const GemmKernels kNeonDotGemmInt8Bf16;
extern const GemmKernels kNeonDotGemmInt4F32;
extern const GemmKernels kNeonDotGemmInt4Bf16;

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_KERNEL_TABLES_ISA_H_
