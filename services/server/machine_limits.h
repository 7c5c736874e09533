// What this process may use of its machine: CPUs and cores from the affinity mask and the cgroup's
// quota, memory from the machine and the cgroup's limit. cgroup v1 and v2, every level up to the
// root.

#ifndef TANDEM_SERVICES_SERVER_MACHINE_LIMITS_H_
#define TANDEM_SERVICES_SERVER_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/cgroups.h"
#include "runtime/base/flags.h"

namespace tandem {

struct MachineLimits {
  // At least 1. A quota is rounded up (1.5 CPUs keep two threads busy), but for a tenth: what is
  // lost then is less than what threads wait for each other while the kernel holds one back.
  int32_t cpus = 1;   // Hardware threads.
  int32_t cores = 1;  // Counting one of each core.
  int64_t memory_bytes = 0;
};

// A file that is missing or unreadable limits nothing. `affinity`: ids of CPUs; none: asks the
// kernel.
MachineLimits ReadMachineLimits(const KernelFiles& files = {}, std::vector<int> affinity = {});

// To what the system allows: every connection takes some. InvalidArgument if that is too little for
// a process without any.
absl::Status RaiseDescriptorLimit();
// Connections of so many descriptors each that a process may have of what the system allows, with
// some left over for what is no connection.
int64_t MaxConnections(int descriptors_each);

// What a process holds for clients and peers that is not a running request, unless a flag says
// otherwise: a tenth of its memory, from 64 MiB to 256 MiB.
int64_t DefaultMemoryLimit(const MachineLimits& machine);
// InvalidArgument for a --memory-limit that is given and too small for a few messages.
absl::Status CheckMemoryLimit(const ByteSize& limit);
// InvalidArgument, with the numbers, for one that the machine does not have beside kProcessReserve.
absl::Status CheckMemoryLimitOn(const MachineLimits& machine, const ByteSize& limit);

// The program itself, threads' stacks, what libraries keep: an idle worker of the demo model has
// 26 MiB of it.
inline constexpr int64_t kProcessReserve = int64_t{64} << 20;

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_MACHINE_LIMITS_H_
