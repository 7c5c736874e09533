#include "runtime/sampling/row_math.h"

namespace tandem {

const RowMath& GetRowMath() {
  static const RowMath* const best = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
      return &kRowMathAvx512;
    }
    return __builtin_cpu_supports("avx2") ? &kRowMathAvx2 : &kRowMathGeneric;
  }();
  return *best;
}

}  // namespace tandem
