// What a worker with these flags will be on this machine, before it takes any of it.

#ifndef TANDEM_SERVICES_WORKER_WORKER_PLAN_H_
#define TANDEM_SERVICES_WORKER_WORKER_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/model/kv_layout.h"
#include "runtime/model/model.h"
#include "services/server/machine_limits.h"
#include "services/worker/worker_sizes.h"

namespace tandem {

struct WorkerPlan {
  std::string transport;  // "ucx", "grpc" or "nccl".
  ModelOptions model_options;
  ModelPlan model;
  KvLayout layout;
  WorkerSizes sizes;
  WorkerMemory memory;  // As it was measured.
};

// Reads headers of the model's files, and no weights. Removes what dead workers left in /dev/shm,
// if the pool is to live there. Errors as of Model::Plan, KvLayout::Make and SizeWorker;
// InvalidArgument if the transport does not move the backend's memory.
absl::StatusOr<WorkerPlan> PlanWorker(const SizeOptions& options, const MachineLimits& machine,
                                      const Backend& backend);

// Removes the pools that dead workers of this user left in /dev/shm: one that is ended before it
// serves, or killed, cannot.
void RemoveAbandonedPools();

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WORKER_PLAN_H_
