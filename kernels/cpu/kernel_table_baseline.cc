// For architectures without an instruction set of their own.

#include "kernels/cpu/kernel_table.h"

namespace tandem {

std::span<const Isa> KnownIsas() {
  static constexpr Isa kIsas[] = {
      {.name = "generic", .needs = "", .kernels = [] { return &GenericKernels(); }}};
  return kIsas;
}

const KernelTable* Avx512Bf16Kernels(Bf16Method, Int8Method) { return nullptr; }
Bf16Method PickedBf16Method() { return Bf16Method::kDot; }
Int8Method PickedInt8Method() { return Int8Method::kDot; }

}  // namespace tandem
