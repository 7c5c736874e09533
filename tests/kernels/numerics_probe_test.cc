#include "kernels/api/numerics_probe.h"

#include <set>

#include "tests/kernels/kernel_test_support.h"

namespace tandem {
namespace {

std::string Probe(Backend& backend) {
  const auto digest = ProbeNumerics(backend);
  EXPECT_TRUE(digest.ok()) << digest.status();
  return HexOf(digest->data(), digest->size());
}

class NumericsProbeTest : public testing::TestWithParam<std::string> {};

TEST_P(NumericsProbeTest, IsTheSameOnAnyNumberOfThreadsAndEveryTime) {
  std::set<std::string> probes;
  for (const int threads : {1, 2, 3}) {
    const auto backend = MakeDevice(GetParam(), threads);
    if (backend == nullptr) GTEST_SKIP() << GetParam() << " is not on this machine";
    probes.insert(Probe(*backend));
    probes.insert(Probe(*backend));
  }
  EXPECT_EQ(probes.size(), 1u) << *probes.begin();
}

INSTANTIATE_TEST_SUITE_P(All, NumericsProbeTest, testing::ValuesIn(TestedDevices()), DeviceName);

TEST(NumericsProbeClassesTest, MethodsOfOneClassAgreeAndClassesDiffer) {
  const std::string generic = Probe(*MakeDevice("cpu-generic"));
  const std::string reference = Probe(*MakeDevice("reference"));
  EXPECT_EQ(generic.size(), 64u);
  const auto dot = MakeDevice("cpu-avx512-dot");
  if (dot == nullptr) GTEST_SKIP() << "no AVX-512 BF16 on this machine";
  EXPECT_EQ(Probe(*dot), Probe(*MakeDevice("cpu-avx512-fma")));
  EXPECT_NE(Probe(*dot), generic);
  EXPECT_NE(Probe(*dot), reference);
}

}  // namespace
}  // namespace tandem
