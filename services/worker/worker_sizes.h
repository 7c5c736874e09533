// What a worker takes of its machine: threads, and of the memory its KV pool.
//
// Workers that share a machine (--machine-share) share its memory: each has as much of it, and
// refuses what is beyond, though the others may not have started yet. Cores are everybody's: who
// has nothing to compute sleeps (kernels/cpu/thread_pool.h). On a GPU it is the GPU's memory that
// they share, up to --gpu-memory-utilization.

#ifndef TANDEM_SERVICES_WORKER_WORKER_SIZES_H_
#define TANDEM_SERVICES_WORKER_WORKER_SIZES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/base/flags.h"
#include "runtime/kv_cache/kv_geometry.h"
#include "runtime/transport/ucx/shm_folder.h"
#include "services/server/machine_limits.h"
#include "services/worker/engine_flags.h"

namespace tandem {

struct SizeOptions : EngineFlags {
  std::string model;
  std::string role = "hybrid";
  int32_t machine_share = 1;  // Workers that share the machine.
  int32_t gpu_share = 0;      // Workers that share the GPU; 0: all of the machine.
  ByteSize memory_limit{0};
  // What a router that runs on the machine takes. No flag: only who starts both knows.
  int64_t router_bytes = 0;
};

// What the model needs, which decides the sizes that no flag gives.
struct ModelSizes {
  int64_t max_positions = 0;
  int64_t weights_bytes = 0;
  bool weights_are_shared = false;  // Mapped by all workers of the machine, from the cache.
  int64_t packing_bytes = 0;        // While they are packed, besides; 0: nothing is packed.
  int64_t block_bytes = 0;          // One block of the pool.
  int64_t window = 0;               // KvWindow::tokens.
  int64_t token_scratch_bytes = 0;  // What a step computes with, for each of its tokens.
  int64_t logit_scratch_bytes = 0;  // What it computes with beside that.
};

// The process's --memory-limit: for all beside weights, KV and what it computes with.
int64_t MemoryLimit(const SizeOptions& options, const MachineLimits& machine);

struct WorkerSizes {
  int32_t max_model_tokens = 0;
  int32_t max_sequences = 0;
  int32_t max_batched_tokens = 0;
  KvGeometry kv;
  std::string memory;  // What each part takes of it, in words.
};

// Threads that compute: at least one; by default one of each core.
int32_t NumThreads(const SizeOptions& options, const MachineLimits& machine);
// How nice (nice(2)) they are: a prefill worker's on a shared machine, so that decode workers,
// whose clients see each token come, have the cores first. 8 levels leave it a quarter of the time
// or more (kernels/README.md, "Two workers on the same cores").
int Niceness(const SizeOptions& options);

// Where a worker's memory is.
struct WorkerMemory {
  std::optional<SharedMemory> shared;  // The pool lives there.
  std::optional<DeviceMemory> device;  // Weights, pool and what it computes with live there.
  // For blocks on their way beside a device's pool: of the device, and what takes it; and pinned
  // memory of the host.
  int64_t transport_bytes = 0;
  std::string transport_owner;
  int64_t pinned_bytes = 0;
};

// Fills in what the flags left at 0. InvalidArgument, with the numbers, if they contradict the
// model, the machine or each other; nothing has been allocated then.
absl::StatusOr<WorkerSizes> SizeWorker(const SizeOptions& options, const ModelSizes& model,
                                       const MachineLimits& machine, const WorkerMemory& memory);

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WORKER_SIZES_H_
