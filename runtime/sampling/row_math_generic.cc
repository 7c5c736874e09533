#define TANDEM_ROW_MATH kRowMathGeneric
#include "runtime/sampling/row_math.inc.h"
