#define TANDEM_ROW_MATH kRowMathAvx2
#define TANDEM_ROW_MATH_NAME "avx2"
#include "kernels/sampling/row_math.inc.h"
