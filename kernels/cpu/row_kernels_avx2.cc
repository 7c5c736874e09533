#include "kernels/cpu/kernel_tables_isa.h"
#include "kernels/cpu/row_kernels.inc.h"

namespace tandem {

constinit const RowKernels kAvx2Rows = kRowKernels;

}  // namespace tandem
