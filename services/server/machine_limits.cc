#include "services/server/machine_limits.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "absl/strings/str_format.h"

namespace tandem {
namespace {

// What a process has open beside connections, and what it must be able to have.
constexpr int64_t kOtherDescriptors = 256;
constexpr rlim_t kLeastDescriptors = 512;

constexpr double kNoLimit = 1e300;

// The file's first line; empty if there is none.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A number, or no limit for "max", -1 or anything else that is none.
double LimitIn(const std::string& text) {
  std::istringstream stream(text);
  double value = 0;
  return stream >> value && value >= 0 ? value : kNoLimit;
}

double Quota(const std::string& quota, const std::string& period) {
  const double quota_us = LimitIn(quota), period_us = LimitIn(period);
  return quota_us < kNoLimit && period_us > 0 && period_us < kNoLimit ? quota_us / period_us
                                                                      : kNoLimit;
}

struct Limits {
  double cpus = kNoLimit;
  double memory_bytes = kNoLimit;

  void Lower(const Limits& other) {
    cpus = std::min(cpus, other.cpus);
    memory_bytes = std::min(memory_bytes, other.memory_bytes);
  }
};

Limits LimitsOfGroup(const std::string& folder) {
  const std::string cpu_max = FirstLine(folder + "/cpu.max");  // v2: "QUOTA|max PERIOD"
  const size_t space = cpu_max.find(' ');
  Limits limits;
  if (space != cpu_max.npos) {
    limits.cpus = Quota(cpu_max.substr(0, space), cpu_max.substr(space + 1));
  }
  limits.Lower({.cpus = Quota(FirstLine(folder + "/cpu.cfs_quota_us"),
                              FirstLine(folder + "/cpu.cfs_period_us")),
                .memory_bytes = std::min(LimitIn(FirstLine(folder + "/memory.max")),
                                         LimitIn(FirstLine(folder + "/memory.limit_in_bytes")))});
  return limits;
}

// The group and all that it lies in, as far up as `mount` shows.
Limits LimitsUpFrom(const std::string& mount, std::string path) {
  Limits limits = LimitsOfGroup(mount);
  while (path.size() > 1) {
    limits.Lower(LimitsOfGroup(mount + path));
    path.resize(path.rfind('/'));
  }
  return limits;
}

Limits CgroupLimits(const KernelFiles& files) {
  Limits limits;
  for (const Cgroup& group : ReadCgroups(files)) {
    if (group.controllers.empty()) limits.Lower(LimitsUpFrom(files.cgroup, group.path));
    for (const std::string& controller : group.controllers) {
      if (controller != "cpu" && controller != "memory") continue;
      limits.Lower(LimitsUpFrom(files.cgroup + "/" + controller, group.path));
    }
  }
  return limits;
}

double MachineMemoryBytes(const KernelFiles& files) {
  std::ifstream meminfo(files.proc + "/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kTotal = "MemTotal:";
    if (line.starts_with(kTotal)) return LimitIn(line.substr(kTotal.size())) * 1024;
  }
  return 0;
}

std::vector<int> AffinityCpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  return cpus;
}

// A CPU whose siblings are not told is a core of its own.
int32_t NumCores(const KernelFiles& files, const std::vector<int>& cpus) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string folder = absl::StrFormat("%s/cpu%d", files.cpus, cpu);
    const std::string siblings = FirstLine(folder + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? folder : siblings);
  }
  return static_cast<int32_t>(cores.size());
}

int32_t WithinQuota(int32_t count, double quota) {
  constexpr double kNoThreadsWorth = 0.1;
  return static_cast<int32_t>(
      std::max(1.0, std::min<double>(count, std::ceil(quota - kNoThreadsWorth))));
}

}  // namespace

absl::Status RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  if (limit.rlim_max < kLeastDescriptors) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "this process may have %d files and sockets open (ulimit -Hn), want at least %d",
        limit.rlim_max, kLeastDescriptors));
  }
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return absl::OkStatus();
}

int64_t MaxConnections(int descriptors_each) {
  constexpr rlim_t kPlenty = rlim_t{1} << 30;  // "unlimited" is a large number.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_max = kPlenty;
  const auto all = static_cast<int64_t>(std::min(limit.rlim_max, kPlenty));
  return std::max<int64_t>(1, (all - kOtherDescriptors) / descriptors_each);
}

int64_t DefaultMemoryLimit(const MachineLimits& machine) {
  return std::clamp(machine.memory_bytes / 10, int64_t{64} << 20, int64_t{256} << 20);
}

absl::Status CheckMemoryLimit(const ByteSize& limit) {
  constexpr int64_t kLeast = int64_t{32} << 20;
  if (limit.bytes == 0 || limit.bytes >= kLeast) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("--memory-limit: %s, want at least %s",
                                                    ToString(limit), ToString(ByteSize{kLeast})));
}

absl::Status CheckMemoryLimitOn(const MachineLimits& machine, const ByteSize& limit) {
  const int64_t most = machine.memory_bytes - kProcessReserve;
  if (limit.bytes == 0 || limit.bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "--memory-limit: %s, but the machine or its cgroup allows %s, of which %s are for the "
      "process itself",
      ToString(limit), FormatByteSize(machine.memory_bytes), FormatByteSize(kProcessReserve)));
}

MachineLimits ReadMachineLimits(const KernelFiles& files, std::vector<int> affinity) {
  if (affinity.empty()) affinity = AffinityCpus();
  const Limits cgroup = CgroupLimits(files);
  return {.cpus = WithinQuota(static_cast<int32_t>(affinity.size()), cgroup.cpus),
          .cores = WithinQuota(NumCores(files, affinity), cgroup.cpus),
          .memory_bytes =
              static_cast<int64_t>(std::min(MachineMemoryBytes(files), cgroup.memory_bytes))};
}

}  // namespace tandem
