#define TANDEM_ROW_MATH kRowMathGeneric
#define TANDEM_ROW_MATH_NAME "generic"
#include "runtime/sampling/row_math.inc.h"
