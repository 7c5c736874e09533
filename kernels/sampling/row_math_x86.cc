// For x86.

#include <vector>

#include "kernels/sampling/row_math.h"

namespace tandem {

extern const RowMath kRowMathAvx2;
extern const RowMath kRowMathAvx512;

std::span<const RowMath* const> SupportedRowMaths() {
  static const std::vector<const RowMath*> supported = [] {
    __builtin_cpu_init();
    std::vector<const RowMath*> maths = {&kRowMathGeneric};
    if (__builtin_cpu_supports("avx2") != 0) maths.push_back(&kRowMathAvx2);
    if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0) {
      maths.push_back(&kRowMathAvx512);
    }
    return maths;
  }();
  return supported;
}

}  // namespace tandem
