// The flags of tandem-worker, and what they mean on this machine.

#ifndef TANDEM_SERVICES_WORKER_WORKER_OPTIONS_H_
#define TANDEM_SERVICES_WORKER_WORKER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/flags.h"
#include "services/server/fleet_flags.h"
#include "services/server/listen_address.h"
#include "services/server/machine_limits.h"
#include "services/worker/engine_flags.h"

namespace tandem {

struct WorkerOptions : EngineFlags {
  std::string model;
  std::string name = "worker";
  int64_t incarnation = 0;
  std::string ended;
  std::string role = "hybrid";
  std::string listen = "127.0.0.1:0";
  std::string port_file;
  std::string admin;
  bool insecure_public_listen = false;
  std::string ucx_devices;
  int32_t machine_share = 1;
  FleetFlags fleet;
  ByteSize memory_limit{0};
};

FlagSet WorkerFlags(WorkerOptions* options);

// What only the flags themselves can tell: the model folder, the name, the address.
// InvalidArgument names the flag and what is allowed.
absl::Status CheckWorkerOptions(const WorkerOptions& options);
// Whether only this machine can reach --listen.
bool ListensOnLoopback(const WorkerOptions& options);
// Of --admin.
absl::StatusOr<std::optional<ListenAddress>> AdminAddress(const WorkerOptions& options);

// What the model and the machine say about the rest.
struct ModelFacts {
  int64_t max_positions = 0;
  int64_t weights_bytes = 0;
  int64_t block_bytes = 0;          // Of one pool block.
  int64_t token_scratch_bytes = 0;  // What is computed with, for each token of a step,
  int64_t logit_scratch_bytes = 0;  // and whatever is in it.
};

// Of the process, beside weights, KV and what it computes with.
int64_t MemoryLimit(const WorkerOptions& options, const MachineLimits& machine);

struct WorkerSizes {
  int32_t max_model_tokens = 0;
  int32_t max_sequences = 0;
  int32_t max_batched_tokens = 0;
  int32_t num_blocks = 0;
};

// Threads that compute: at least one.
int32_t NumThreads(const WorkerOptions& options, const MachineLimits& machine);

// Of /dev/shm.
struct SharedMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// Fills in what the flags left at 0. InvalidArgument, with the numbers, if they contradict the
// model, the machine or each other; nothing has been allocated then. `shared_memory` is nothing
// where the pool does not live there.
absl::StatusOr<WorkerSizes> SizeWorker(const WorkerOptions& options, const ModelFacts& model,
                                       const MachineLimits& machine,
                                       const std::optional<SharedMemory>& shared_memory);

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WORKER_OPTIONS_H_
