#define TANDEM_ROW_MATH kRowMathAvx2
#include "runtime/sampling/row_math.inc.h"
