#define TANDEM_ROW_MATH kRowMathGeneric
#define TANDEM_ROW_MATH_NAME "generic"
#include "kernels/sampling/row_math.inc.h"
