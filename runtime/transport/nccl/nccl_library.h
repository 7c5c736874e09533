// NCCL itself, in builds that have CUDA and found it (cmake/TandemCuda.cmake).

#ifndef TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_LIBRARY_H_
#define TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_LIBRARY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/transport/nccl/nccl_api.h"

namespace tandem {

// On the first GPU that the process sees. `interface` is the one on which NCCL listens and dials,
// as the system names it; empty: loopback, and nothing beyond this machine. It goes into the
// environment, which NCCL reads at its first call: once in a process, before that.
// FailedPrecondition in a build without NCCL.
absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(const std::string& interface);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_LIBRARY_H_
