// tandem-worker: loads a model and serves it to routers and other workers.

#ifndef TANDEM_SERVICES_WORKER_WORKER_PROCESS_H_
#define TANDEM_SERVICES_WORKER_WORKER_PROCESS_H_

#include <string>
#include <vector>

namespace tandem {

// Until it is told to stop; the exit status. `device` as in BackendOptions.
int RunWorkerProcess(const std::vector<std::string>& arguments, const std::string& device);

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WORKER_PROCESS_H_
