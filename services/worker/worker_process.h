// tandem-worker: loads a model and serves it to routers and other workers.

#ifndef TANDEM_SERVICES_WORKER_WORKER_PROCESS_H_
#define TANDEM_SERVICES_WORKER_WORKER_PROCESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "kernels/create_backend.h"
#include "runtime/transport/nccl/nccl_library.h"
#include "runtime/transport/ucx/ucx_memory.h"

namespace tandem {

using BackendFactory =
    std::function<absl::StatusOr<std::unique_ptr<Backend>>(const BackendOptions&)>;
using NcclFactory =
    std::function<absl::StatusOr<std::unique_ptr<NcclApi>>(const std::string& interface)>;

// Until it is told to stop; the exit status. Computes with what `create_backend` makes of the
// flags, and moves blocks with what `open_nccl` does where --transport says so; what UCX is to
// take a device's memory for is `ucx_memory`. All three are what they are by default but in tests.
int RunWorkerProcess(const std::vector<std::string>& arguments,
                     const BackendFactory& create_backend, const NcclFactory& open_nccl = OpenNccl,
                     const UcxMemory& ucx_memory = {});

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WORKER_PROCESS_H_
