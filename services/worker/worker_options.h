// The flags of tandem-worker.

#ifndef TANDEM_SERVICES_WORKER_WORKER_OPTIONS_H_
#define TANDEM_SERVICES_WORKER_WORKER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/flags.h"
#include "services/server/drain_time.h"
#include "services/server/fleet_flags.h"
#include "services/server/listen_address.h"
#include "services/worker/worker_sizes.h"

namespace tandem {

struct WorkerOptions : SizeOptions {
  std::string name = "worker";
  int64_t incarnation = 0;
  std::string ended;
  std::string listen = "127.0.0.1:0";
  std::string port_file;
  std::string admin;
  bool insecure_public_listen = false;
  std::string nccl_interface;
  FleetFlags fleet;
  int32_t drain_seconds = kWorkerDrainSeconds;
};

FlagSet WorkerFlags(WorkerOptions* options);

// What only the flags themselves can tell: the model folder, the name, the address.
// InvalidArgument names the flag and what is allowed.
absl::Status CheckWorkerOptions(const WorkerOptions& options);
// Whether only this machine can reach --listen.
bool ListensOnLoopback(const WorkerOptions& options);
// What --admin says.
absl::StatusOr<std::optional<ListenAddress>> AdminAddress(const WorkerOptions& options);

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WORKER_OPTIONS_H_
