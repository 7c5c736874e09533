// The kernels of AMX, from the same source, on tiles in plain C++ (software_tiles.h): for tests on
// machines without. What computes without tiles is generic code.

#ifndef TANDEM_TESTS_KERNELS_SOFTWARE_AMX_H_
#define TANDEM_TESTS_KERNELS_SOFTWARE_AMX_H_

#include "kernels/cpu/kernel_table.h"

namespace tandem {

// With weights of bf16, and of 8 bits for inputs of each type.
const GemmKernels& SoftwareTilesBf16();
const GemmKernels& SoftwareTilesInt8(DType compute_dtype);

// `base`, but that bf16 is multiplied in software tiles, if wanted, and 8 bits from so many rows
// on.
KernelTable WithSoftwareTiles(const KernelTable& base, bool bf16, int64_t int8_rows_from);

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_SOFTWARE_AMX_H_
