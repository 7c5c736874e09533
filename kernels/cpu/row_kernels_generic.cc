#include "kernels/cpu/kernel_tables_isa.h"
#include "kernels/cpu/row_kernels.inc.h"

namespace tandem {

const RowKernels kGenericRows = kRowKernels;

}  // namespace tandem
