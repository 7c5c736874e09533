// The methods that an instruction set of x86 leaves open, and which this machine is best at.

#ifndef TANDEM_KERNELS_CPU_KERNEL_TABLE_X86_H_
#define TANDEM_KERNELS_CPU_KERNEL_TABLE_X86_H_

#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace tandem {

// How "avx512bf16" makes bf16 products (micro_kernel.h).
enum class Bf16Method : uint8_t { kDot, kFma };
// How "avx512bf16" and "amx" make 8-bit products of many rows: as those of few, by vpdpbusd, or by
// tiles of AMX (amx_gemm.inc.h). The sums are exact and so the same.
enum class Int8Method : uint8_t { kDot, kTiles };
// Rows from which kTiles takes tiles. Fewer wait for memory either way.
inline constexpr int64_t kTileRowsFrom = 16;

// By one of its methods; its entry in KnownIsas has those that were picked. Null if this machine
// lacks something, for kTiles a process that may use AMX.
const KernelTable* Avx512Bf16Kernels(Bf16Method bf16, Int8Method int8);

// What this machine is best at, tried once by the methods below. kDot where there is no choice.
// Any thread.
Bf16Method PickedBf16Method();
Int8Method PickedInt8Method();

// kDot unless `fma` is faster and has the bits of `dot`, the class's own: both are run on a tile of
// numbers of all exponents, in a millisecond. Other bits are a warning in the log.
Bf16Method PickBf16Method(const GemmKernels& dot, const GemmKernels& fma);
// kDot unless `tiles` is faster and has the bits of `dot`: both are run on a layer of bf16 with
// weights of 8 bits, in a few milliseconds. Other bits are a warning in the log.
Int8Method PickInt8Method(const GemmKernels& dot, const GemmKernels& tiles);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_KERNEL_TABLE_X86_H_
