// For architectures without an instruction set of their own.

#include "kernels/cpu/kernel_table.h"

namespace tandem {

std::span<const Isa> KnownIsas() {
  static constexpr Isa kIsas[] = {
      {.name = "generic", .needs = "", .kernels = [] { return &GenericKernels(); }}};
  return kIsas;
}

}  // namespace tandem
