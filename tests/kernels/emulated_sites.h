// Barriers, fences and waits of a file's kernels, each left out alone: none is there for nothing.

#ifndef TANDEM_TESTS_KERNELS_EMULATED_SITES_H_
#define TANDEM_TESTS_KERNELS_EMULATED_SITES_H_

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulated/block.h"
#include "kernels/probe/numerics_probe.h"

namespace tandem {

struct SitesCase {
  std::string_view files;  // What their names begin with.
  bool launch_waits;       // Waits for the launch before, in place of all else.
  size_t least;            // Sites that there are of these files.
  uint64_t seed;
  uint64_t orders = 3;  // A fault shows in almost all.
  // What the kernels give, nothing if a call fails, on a device of its own: what has failed stays
  // failed. It may fail expectations, as some launches should.
  std::function<std::vector<std::byte>()> run;
};

inline void ExpectEachSiteIsNeeded(const SitesCase& c) {
  const auto take = [&] {
    return c.launch_waits ? emulated::TakeLaunchWaits() : emulated::TakeSites();
  };
  // Whose outputs are all the device's, where what is written too early is seen.
  const auto probe = [&] {
    const ProbeShape small{
        .rows = 1, .features = 32, .outputs = 8, .vocabulary = 64, .head_dim = 64, .positions = 70};
    const auto backend = CreateCudaBackend("tensor");
    return backend.ok() && ProbeOperations(**backend, small, c.seed).ok();
  };
  // In an order of threads; nothing if something is wrong.
  const auto run = [&](uint64_t order) {
    emulated::SetSeed(order);
    testing::TestPartResultArray failures;
    testing::ScopedFakeTestPartResultReporter expects_failures(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    const std::vector<std::byte> given = c.run();
    return emulated::TakeFault().empty() ? given : std::vector<std::byte>();
  };
  take();
  emulated::TakeFault();
  emulated::WatchEarlyThreads(c.launch_waits);
  const std::vector<std::byte> expected = run(c.seed);
  ASSERT_FALSE(expected.empty());
  const std::set<emulated::Site> sites = take();
  ASSERT_TRUE(probe());
  size_t num_sites = 0;
  for (const emulated::Site& site : sites) {
    if (!site.file.starts_with(c.files)) continue;
    ++num_sites;
    emulated::LeaveOut(site);
    bool caught = c.launch_waits && !probe();
    for (uint64_t order = 0; order < c.orders && !caught; ++order) {
      caught = run(c.seed + order) != expected;
    }
    emulated::LeaveOut();
    EXPECT_TRUE(caught) << site.file << ":" << site.line << " was not missed";
  }
  EXPECT_GE(num_sites, c.least);
}

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_EMULATED_SITES_H_
