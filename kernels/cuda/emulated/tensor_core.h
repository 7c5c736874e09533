// What a tensor core makes of a sum of bf16 products: the arithmetic of Hopper, as Xie et al. found
// it (MMA-Sim, 2025). All products are exact; they and the number that they are added to are
// aligned to the largest exponent among them and cut off behind 25 binary places; their sum, which
// is exact, is cut off to f32. So there is one sum of sixteen, whatever the order of its products.

#ifndef TANDEM_KERNELS_CUDA_EMULATED_TENSOR_CORE_H_
#define TANDEM_KERNELS_CUDA_EMULATED_TENSOR_CORE_H_

#include <cstdint>

namespace tandem::emulated {

// c + Σ a · b of bf16 numbers, given as their bits.
float TensorCoreSum(float c, const uint16_t (&a)[16], const uint16_t (&b)[16]);

}  // namespace tandem::emulated

#endif  // TANDEM_KERNELS_CUDA_EMULATED_TENSOR_CORE_H_
