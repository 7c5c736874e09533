// For architectures without AVX-512.

#include "kernels/cpu/kernel_table.h"

namespace tandem {

const KernelTable* Avx512Kernels(Bf16Method method) { return nullptr; }
Bf16Method BestBf16Method() { return Bf16Method::kDot; }

}  // namespace tandem
