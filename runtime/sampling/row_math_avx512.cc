#define TANDEM_ROW_MATH kRowMathAvx512
#include "runtime/sampling/row_math.inc.h"
