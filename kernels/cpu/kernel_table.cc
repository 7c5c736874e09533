#include "kernels/cpu/kernel_table.h"

namespace tandem {
namespace {

bool IsOf(const GemmKernels& kernels, WeightType weight_type, DType compute_dtype) {
  return kernels.weight_type == weight_type && kernels.compute_dtype == compute_dtype;
}

}  // namespace

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
