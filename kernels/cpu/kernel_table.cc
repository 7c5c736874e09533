#include "kernels/cpu/kernel_table.h"

#include "runtime/base/math.h"

namespace tandem {
namespace {

bool IsOf(const GemmKernels& kernels, WeightType weight_type, DType compute_dtype) {
  return kernels.weight_type == weight_type && kernels.compute_dtype == compute_dtype;
}

}  // namespace

int64_t GemmKernels::RowBytes(int64_t in_features, int64_t groups) const {
  const int64_t units =
      RoundUp<int64_t>(CeilDiv<int64_t>(in_features, k_per_unit), activation_block_units);
  return units * static_cast<int64_t>(activation_unit_bytes) + static_cast<int64_t>(row_run_bytes) +
         groups * static_cast<int64_t>(row_group_bytes);
}

const GemmKernels* KernelTable::FindGemm(WeightType weight_type, DType compute_dtype) const {
  for (const GemmKernels& kernels : gemm) {
    if (IsOf(kernels, weight_type, compute_dtype)) return &kernels;
  }
  return nullptr;
}

void KernelTable::Replace(const GemmKernels& kernels) {
  for (GemmKernels& old : gemm) {
    if (IsOf(old, kernels.weight_type, kernels.compute_dtype)) old = kernels;
  }
}

KernelTable KernelTable::With(const char* name, std::span<const GemmKernels> kernels) const {
  KernelTable table = *this;
  table.isa = name;
  for (const GemmKernels& replacing : kernels) table.Replace(replacing);
  return table;
}

}  // namespace tandem
