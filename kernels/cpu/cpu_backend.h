// The CPU backend: kernels per instruction set, picked once at creation, on a thread pool of its
// own. Within a class of instruction sets (docs/numerics.md) the bits depend on nothing else: not
// on threads, rows, blocks.

#ifndef TANDEM_KERNELS_CPU_CPU_BACKEND_H_
#define TANDEM_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "kernels/cpu/kernel_table.h"

namespace tandem {

struct CpuBackendOptions {
  std::string isa = "auto";  // "auto", or a name of KnownIsas()
  int num_threads = 1;       // 1 to 1,024, the calling thread included
  int niceness = 0;          // As of ThreadPool.
};

// InvalidArgument for an unknown isa or a thread count out of range; FailedPrecondition if this
// machine lacks the instruction set.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options);

// For tests and benchmarks: of any kernels, which outlive it.
std::unique_ptr<Backend> CreateCpuBackend(const KernelTable& table, int num_threads);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_CPU_BACKEND_H_
