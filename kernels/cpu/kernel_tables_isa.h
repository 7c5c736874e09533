// The pieces of each instruction set's table, one file of definitions each. Those of an instruction
// set may only be touched after a look at the machine (KnownIsas).

#ifndef TANDEM_KERNELS_CPU_KERNEL_TABLES_ISA_H_
#define TANDEM_KERNELS_CPU_KERNEL_TABLES_ISA_H_

#include "kernels/cpu/kernel_table.h"

namespace tandem {

extern const RowKernels kGenericRows;
extern const GemmTable kGenericGemm;
extern const F32AttentionTable kGenericAttentionF32;
extern const Bf16AttentionTable kGenericAttentionBf16;

extern const RowKernels kAvx2Rows;
extern const GemmTable kAvx2Gemm;
extern const F32AttentionTable kAvx2AttentionF32;
extern const Bf16AttentionTable kAvx2AttentionBf16;

// What AVX-VNNI adds.
extern const std::array<GemmKernels, 4> kAvx2VnniGemm;

extern const RowKernels kAvx512Rows;
extern const GemmTable kAvx512Gemm;
extern const F32AttentionTable kAvx512AttentionF32;
extern const Bf16AttentionTable kAvx512AttentionBf16;

// What AVX-512 VNNI adds.
extern const std::array<GemmKernels, 4> kAvx512VnniGemm;

// What AVX-512 BF16 adds.
extern const GemmKernels kAvx512Bf16GemmDot;
extern const Bf16AttentionTable kAvx512Bf16AttentionDot;
extern const Bf16AttentionTable kAvx512Bf16AttentionFma;

// What AMX adds, for processes that may use it.
extern const GemmKernels kAmxGemmInt8F32;
extern const GemmKernels kAmxGemmInt8Bf16;
extern const GemmKernels kAmxGemmBf16;

// NEON has no rows of its own: the generic ones use it.
extern const GemmTable kNeonGemm;
extern const F32AttentionTable kNeonAttentionF32;
extern const Bf16AttentionTable kNeonAttentionBf16;

// What NEON's dot products add.
extern const std::array<GemmKernels, 4> kNeonDotGemm;

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_KERNEL_TABLES_ISA_H_
