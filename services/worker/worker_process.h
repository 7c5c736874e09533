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

namespace tandem {

using BackendFactory =
    std::function<absl::StatusOr<std::unique_ptr<Backend>>(const BackendOptions&)>;

// Until it is told to stop; the exit status. Computes with what `create_backend` makes of the
// flags: CreateBackend but in tests.
int RunWorkerProcess(const std::vector<std::string>& arguments,
                     const BackendFactory& create_backend);

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WORKER_PROCESS_H_
