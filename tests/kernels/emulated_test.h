// What the tests of the emulated GPU have in common: a seed that is printed, and no barrier left
// out when a test has ended.

#ifndef TANDEM_TESTS_KERNELS_EMULATED_TEST_H_
#define TANDEM_TESTS_KERNELS_EMULATED_TEST_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "kernels/cuda/emulated/block.h"
#include "runtime/base/random.h"
#include "tests/kernels/kernel_test_support.h"

namespace tandem {

class EmulatedTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const text = std::getenv("TANDEM_TEST_SEED");
    seed_ = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
    random_ = std::make_unique<Random>(seed_);
    if (MakeBackend("cuda") == nullptr || MakeBackend("cpu-avx2") == nullptr) {
      GTEST_SKIP() << "this machine lacks AVX2 or FMA";
    }
    emulated::SetSeed(seed_);
    emulated::TakeFault();
  }
  void TearDown() override {
    emulated::LeaveOut();
    emulated::WatchEarlyThreads(false);
    emulated::SetGpu({});
  }

  uint64_t seed_ = 1;
  std::unique_ptr<Random> random_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_EMULATED_TEST_H_
