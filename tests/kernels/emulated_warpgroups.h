// A GPU whose warpgroups sum as its warps do, and one on which they do not: there kernels of a
// warp's products do the same work, and their bits are the others' oracle.

#ifndef TANDEM_TESTS_KERNELS_EMULATED_WARPGROUPS_H_
#define TANDEM_TESTS_KERNELS_EMULATED_WARPGROUPS_H_

#include <memory>
#include <set>
#include <string>

#include "kernels/cuda/emulated/block.h"
#include "tests/kernels/emulated_test.h"
#include "tests/kernels/kernel_test_support.h"

namespace tandem {

class EmulatedWarpgroupsTest : public EmulatedTest {
 protected:
  void SetUp() override {
    EmulatedTest::SetUp();
    if (IsSkipped()) return;
    device_ = MakeDevice("cuda-tensor");
    emulated::SumWarpgroupsByHalves(true);
    of_warps_ = MakeDevice("cuda-tensor");
    emulated::SumWarpgroupsByHalves(false);
    emulated::TakeSites();
  }
  void TearDown() override {
    emulated::SumWarpgroupsByHalves(false);
    EmulatedTest::TearDown();
  }

  // Files whose kernels have run since the last call.
  static std::set<std::string> TakeFiles() {
    std::set<std::string> files;
    for (const emulated::Site& site : emulated::TakeSites()) files.insert(site.file);
    return files;
  }

  std::unique_ptr<TestDevice> device_;
  std::unique_ptr<TestDevice> of_warps_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_EMULATED_WARPGROUPS_H_
