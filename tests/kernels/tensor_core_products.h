// Products of a GPU's tensor cores, one warp each.

#ifndef TANDEM_TESTS_KERNELS_TENSOR_CORE_PRODUCTS_H_
#define TANDEM_TESTS_KERNELS_TENSOR_CORE_PRODUCTS_H_

#include <cstdint>
#include <vector>

namespace tandem {

// d + a · b of matrices [count, 16, 16], [count, 8, 16] (columns) and [count, 16, 8], on the
// process's GPU; numbers of bf16 as their bits. Empty if a call of CUDA fails.
std::vector<float> TensorCoreProducts(const std::vector<uint16_t>& a,
                                      const std::vector<uint16_t>& b, std::vector<float> d);

// Whether launches of that kernel overlap.
bool TensorCoreProductsOverlap();

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_TENSOR_CORE_PRODUCTS_H_
