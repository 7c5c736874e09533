#include "runtime/base/cgroups.h"

#include <fstream>

#include "absl/strings/str_split.h"

namespace tandem {

// "0::/path" for version 2, "N:cpu,cpuacct:/path" for version 1.
std::vector<Cgroup> ReadCgroups(const KernelFiles& files) {
  std::vector<Cgroup> groups;
  std::ifstream lines(files.proc + "/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    groups.push_back({absl::StrSplit(parts[1], ',', absl::SkipEmpty()), parts[2]});
  }
  return groups;
}

}  // namespace tandem
