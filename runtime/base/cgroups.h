// The control groups of this process, whose files say what the kernel allows it and has done to it.

#ifndef TANDEM_RUNTIME_BASE_CGROUPS_H_
#define TANDEM_RUNTIME_BASE_CGROUPS_H_

#include <string>
#include <vector>

namespace tandem {

// Where the kernel's files are found; tests bring trees of their own.
struct KernelFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  std::string cpus = "/sys/devices/system/cpu";
};

// One hierarchy of version 1, or that of version 2.
struct Cgroup {
  std::vector<std::string> controllers;  // "memory"; none: version 2.
  std::string path;  // "/" or "/a/b", below where it is mounted. In a container it may lie outside.
};

// As <proc>/self/cgroup has them; none if it is missing.
std::vector<Cgroup> ReadCgroups(const KernelFiles& files);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_CGROUPS_H_
