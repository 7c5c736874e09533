#include "tests/kernels/tensor_core_products.h"

#include <cuda_runtime.h>

#include "kernels/cuda/simt.h"

namespace tandem {
namespace {

struct ProductsLaunch {
  const uint16_t* a;
  const uint16_t* b;
  float* d;
};

__global__ void TANDEM_THREADS(32, 1) ProductsKernel(ProductsLaunch launch) {
  BeginLaunch();
  const int64_t product = blockIdx.x;
  const int group = threadIdx.x / 4;
  const int in_group = threadIdx.x % 4;
  const uint16_t* const a = launch.a + product * 256;
  const uint16_t* const b = launch.b + product * 128;
  float* const d = launch.d + product * 128;
  const auto pair = [](const uint16_t* from) { return from[0] | uint32_t{from[1]} << 16; };
  uint32_t of_a[4];
  uint32_t of_b[2];
  float sums[4];
  for (int i = 0; i < 4; ++i) {
    of_a[i] = pair(a + (group + i % 2 * 8) * 16 + in_group * 2 + i / 2 * 8);
    sums[i] = d[(group + i / 2 * 8) * 8 + in_group * 2 + i % 2];
  }
  for (int i = 0; i < 2; ++i) of_b[i] = pair(b + group * 16 + in_group * 2 + i * 8);
  MmaBf16(sums, of_a, of_b);
  for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + in_group * 2 + i % 2] = sums[i];
}

// On the device; null if that failed.
template <typename T>
T* Placed(const std::vector<T>& numbers) {
  T* placed = nullptr;
  const size_t bytes = numbers.size() * sizeof(T);
  if (cudaMalloc(&placed, bytes) != cudaSuccess) return nullptr;
  return cudaMemcpy(placed, numbers.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess ? placed
                                                                                          : nullptr;
}

}  // namespace

std::vector<float> TensorCoreProducts(const std::vector<uint16_t>& a,
                                      const std::vector<uint16_t>& b, std::vector<float> d) {
  const ProductsLaunch launch{.a = Placed(a), .b = Placed(b), .d = Placed(d)};
  const auto count = static_cast<int64_t>(a.size() / 256);
  const bool ok =
      launch.a != nullptr && launch.b != nullptr && launch.d != nullptr &&
      Launch(ProductsKernel, {.blocks = count, .threads = 32}, nullptr, launch) == cudaSuccess &&
      cudaMemcpy(d.data(), launch.d, d.size() * sizeof(float), cudaMemcpyDeviceToHost) ==
          cudaSuccess;
  cudaFree(const_cast<uint16_t*>(launch.a));
  cudaFree(const_cast<uint16_t*>(launch.b));
  cudaFree(launch.d);
  if (!ok) d.clear();
  return d;
}

bool TensorCoreProductsOverlap() {
  return CompiledToOverlap(reinterpret_cast<const void*>(ProductsKernel));
}

}  // namespace tandem
