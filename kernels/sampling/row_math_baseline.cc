// For architectures whose baseline is all that we compile for.

#include "kernels/sampling/row_math.h"

namespace tandem {

std::span<const RowMath* const> SupportedRowMaths() {
  static constexpr const RowMath* kSupported[] = {&kRowMathGeneric};
  return kSupported;
}

}  // namespace tandem
