// Whether kernels/cuda/emulated knows what a GPU's tensor cores make of a sum: all bits of random
// products, on GPUs of the kind that it emulates.

#include "kernels/cuda/emulated/tensor_core.h"

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <string>

#include "kernels/probe/hostile_numbers.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/tensor_core_products.h"

namespace tandem {
namespace {

TEST(TensorCoreTest, cuda_SumsAreThoseOfTheEmulation) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9) {
    GTEST_SKIP() << "needs a GPU of compute capability 9";
  }
  constexpr int kProducts = 2048;
  Random random(11);
  // Exponents of all numbers near one; of a few sizes; all there are; no numbers.
  struct Case {
    int a, b, d;
    double non_finite;
  };
  const Case cases[] = {{127, 127, 127, 0}, {120, 130, 122, 0}, {60, 67, 0, 0},
                        {190, 180, 200, 0}, {20, 40, 0, 0},     {127, 127, 127, 0.01}};
  for (const Case& c : cases) {
    const auto number = [&](int exponent) {
      return random.Chance(c.non_finite) ? NonFiniteNumber(&random)
                                         : HostileNumber(exponent, &random);
    };
    std::vector<uint16_t> a(kProducts * 256), b(kProducts * 128);
    std::vector<float> d(kProducts * 128);
    for (uint16_t& x : a) x = ToBfloat16(number(c.a)).bits;
    for (uint16_t& x : b) x = ToBfloat16(number(c.b)).bits;
    for (float& x : d) x = number(c.d);
    const std::vector<float> actual = TensorCoreProducts(a, b, d);
    ASSERT_EQ(actual.size(), d.size());
    for (size_t i = 0; i < d.size(); ++i) {
      const size_t product = i / 128, row = i / 8 % 16, column = i % 8;
      uint16_t of_a[16], of_b[16];
      std::copy_n(&a[product * 256 + row * 16], 16, of_a);
      std::copy_n(&b[product * 128 + column * 16], 16, of_b);
      const float expected = emulated::TensorCoreSum(d[i], of_a, of_b);
      ASSERT_EQ(OneNan(std::bit_cast<uint32_t>(actual[i])),
                OneNan(std::bit_cast<uint32_t>(expected)))
          << "product " << product << ", row " << row << ", column " << column << ": " << actual[i]
          << ", expected " << expected;
    }
  }
}

// Were they taken for code that waits for nothing, steps would only be slower.
TEST(TensorCoreTest, cuda_LaunchesOverlap) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major < 9) {
    GTEST_SKIP() << "needs a GPU of compute capability 9";
  }
  EXPECT_TRUE(TensorCoreProductsOverlap());
}

}  // namespace
}  // namespace tandem
