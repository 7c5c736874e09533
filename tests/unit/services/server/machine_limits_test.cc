#include "services/server/machine_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <thread>
#include <vector>

namespace tandem {
namespace {

// A tree of the kernel's files in a folder of its own.
class MachineLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/machine_limits_" + std::to_string(getpid());
    std::filesystem::remove_all(root_);
    Write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 5 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  // On CPUs 0 to num_cpus - 1; 0: those that the kernel says.
  MachineLimits Read(int num_cpus) {
    std::vector<int> affinity(num_cpus);
    std::iota(affinity.begin(), affinity.end(), 0);
    return ReadMachineLimits(
        {.proc = root_ + "/proc", .cgroup = root_ + "/cgroup", .cpus = root_ + "/cpus"}, affinity);
  }
  void Pair(int cpu, int sibling) {
    const std::string siblings = std::to_string(cpu) + "," + std::to_string(sibling) + "\n";
    for (const int each : {cpu, sibling}) {
      Write("cpus/cpu" + std::to_string(each) + "/topology/thread_siblings_list", siblings);
    }
  }

  std::string root_;
};

constexpr int64_t kGiB = int64_t{1} << 30;

TEST_F(MachineLimitsTest, WithoutCgroupsItIsTheMachineAndTheAffinityMask) {
  EXPECT_EQ(Read(8).cpus, 8);
  EXPECT_EQ(Read(8).memory_bytes, 16 * kGiB);
}

TEST_F(MachineLimitsTest, VersionTwoTakesTheTightestLevel) {
  Write("proc/self/cgroup", "0::/kube/pod/container\n");
  Write("cgroup/kube/pod/container/cpu.max", "max 100000\n");
  Write("cgroup/kube/pod/container/memory.max", "8589934592\n");
  Write("cgroup/kube/pod/cpu.max", "150000 100000\n");
  Write("cgroup/kube/memory.max", "4294967296\n");
  EXPECT_EQ(Read(8).cpus, 2) << "a quota of 1.5";
  EXPECT_EQ(Read(8).memory_bytes, 4 * kGiB);
}

TEST_F(MachineLimitsTest, VersionTwoInAContainerSeesItsOwnGroupAsTheRoot) {
  Write("proc/self/cgroup", "0::/\n");
  Write("cgroup/cpu.max", "300000 100000\n");
  Write("cgroup/memory.max", "max\n");
  EXPECT_EQ(Read(8).cpus, 3);
  EXPECT_EQ(Read(2).cpus, 2);
  EXPECT_EQ(Read(8).memory_bytes, 16 * kGiB);
}

TEST_F(MachineLimitsTest, VersionOneReadsEachControllersTree) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n1:name=systemd:/x\n");
  Write("cgroup/cpu/docker/abc/cpu.cfs_quota_us", "250000\n");
  Write("cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
  Write("cgroup/memory/docker/abc/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(Read(8).cpus, 3) << "a quota of 2.5";
  EXPECT_EQ(Read(8).memory_bytes, 2 * kGiB);
}

TEST_F(MachineLimitsTest, NoQuotaInVersionOneIsMinusOne) {
  Write("proc/self/cgroup", "5:cpu:/a\n");
  Write("cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  Write("cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read(8).cpus, 8);
}

TEST_F(MachineLimitsTest, AQuotaIsRoundedUpButForATenth) {
  Write("proc/self/cgroup", "0::/\n");
  for (const auto& [quota, cpus] : std::map<std::string, int32_t>{
           {"50000", 1}, {"105000", 1}, {"111000", 2}, {"210000", 2}, {"211000", 3}}) {
    Write("cgroup/cpu.max", quota + " 100000\n");
    EXPECT_EQ(Read(8).cpus, cpus) << quota;
    EXPECT_EQ(Read(8).cores, cpus) << quota;
  }
}

TEST_F(MachineLimitsTest, ACoreCountsOnceThoughItHasTwoThreads) {
  EXPECT_EQ(Read(8).cores, 8) << "nothing is said of siblings";
  for (int cpu = 0; cpu < 4; ++cpu) Pair(cpu, cpu + 4);
  EXPECT_EQ(Read(8).cores, 4);
  EXPECT_EQ(Read(8).cpus, 8);
  EXPECT_EQ(Read(5).cores, 4) << "CPU 4 is a sibling of 0";
  EXPECT_EQ(Read(3).cores, 3);
  Write("proc/self/cgroup", "0::/\n");
  Write("cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(Read(8).cores, 3);
}

TEST_F(MachineLimitsTest, ThisMachineHasSome) {
  const MachineLimits limits = ReadMachineLimits();
  EXPECT_GE(limits.cpus, limits.cores);
  EXPECT_GE(limits.cores, 1);
  EXPECT_GT(limits.memory_bytes, 64 << 20);
}

TEST_F(MachineLimitsTest, WithoutAnswerTheKernelIsAskedForTheCpus) {
  EXPECT_EQ(Read(0).cpus, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

TEST_F(MachineLimitsTest, ATenthOfTheMemoryIsForOthersWithinBounds) {
  EXPECT_EQ(DefaultMemoryLimit({.memory_bytes = kGiB}), kGiB / 10);
  EXPECT_EQ(DefaultMemoryLimit({.memory_bytes = kGiB / 4}), kGiB / 16);
  EXPECT_EQ(DefaultMemoryLimit({.memory_bytes = 64 * kGiB}), kGiB / 4);
  EXPECT_TRUE(CheckMemoryLimit({.bytes = 0}).ok());
  EXPECT_TRUE(CheckMemoryLimit({.bytes = kGiB / 32}).ok());
  EXPECT_EQ(std::string(CheckMemoryLimit({.bytes = kGiB / 32 - 1}).message()),
            "--memory-limit: 33554431 B, want at least 32.00 MiB");
}

TEST_F(MachineLimitsTest, NoProcessMayHoldMoreThanTheMachineHas) {
  const MachineLimits machine = {.memory_bytes = kGiB};
  const int64_t most = kGiB - kProcessReserve;
  EXPECT_TRUE(CheckMemoryLimitOn(machine, {.bytes = most}).ok());
  EXPECT_TRUE(CheckMemoryLimitOn({}, {.bytes = 0}).ok()) << "nothing is asked for";
  EXPECT_EQ(std::string(CheckMemoryLimitOn(machine, {.bytes = 2 * kGiB}).message()),
            "--memory-limit: 2.00 GiB, but the machine or its cgroup allows 1.00 GiB, of which "
            "64.00 MiB are for the process itself");
  EXPECT_TRUE(absl::IsInvalidArgument(CheckMemoryLimitOn(machine, {.bytes = most + 1})));
}

// What a shell allows at first, 1024 as a rule, is no limit of the machine.
TEST(DescriptorLimitTest, AProcessMayOpenWhatItsHardLimitAllows) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = std::min<rlim_t>(256, before.rlim_max), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const absl::Status raised = RaiseDescriptorLimit();
  rlimit after{};
  getrlimit(RLIMIT_NOFILE, &after);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(raised.ok()) << raised;
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
}

// In a process of its own, as nobody may raise a hard limit again.
TEST(DescriptorLimitTest, WhatASystemAllowsIsEnoughOrRefusedAndShared) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto as_wanted = [] {
    const auto allow = [](rlim_t most) {
      const rlimit limit{.rlim_cur = most, .rlim_max = most};
      return setrlimit(RLIMIT_NOFILE, &limit) == 0;
    };
    if (!allow(1256) || MaxConnections(2) != 500 || MaxConnections(3) != 333) return 1;
    if (!allow(512) || !RaiseDescriptorLimit().ok()) return 2;
    if (!allow(511) || !absl::IsInvalidArgument(RaiseDescriptorLimit())) return 3;
    return allow(257) && MaxConnections(2) == 1 ? 0 : 4;
  };
  EXPECT_EXIT(std::exit(as_wanted()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tandem
