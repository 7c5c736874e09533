#define TANDEM_ROW_MATH kRowMathAvx512
#define TANDEM_ROW_MATH_NAME "avx512"
#include "kernels/sampling/row_math.inc.h"
