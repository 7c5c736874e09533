#include "services/worker/worker_plan.h"

#include <sys/statvfs.h>

#include <optional>
#include <utility>

#include "runtime/base/status_macros.h"
#include "runtime/execution/model_executor.h"
#include "runtime/model/packed_image.h"
#include "runtime/transport/ucx/shm_folder.h"

namespace tandem {
namespace {

SharedMemory MeasureSharedMemory() {
  ShmFolder::RemoveAbandoned();
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) != 0) return {};
  const auto unit = static_cast<int64_t>(shm.f_frsize);
  return {.total_bytes = static_cast<int64_t>(shm.f_blocks) * unit,
          .free_bytes = static_cast<int64_t>(shm.f_bavail) * unit};
}

}  // namespace

absl::StatusOr<WorkerPlan> PlanWorker(const SizeOptions& options, const MachineLimits& machine,
                                      const Backend& backend) {
  const ModelOptions model_options{
      .folder = options.model,
      .load_format = options.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kSafetensors,
      .dtype = options.dtype,
      .cache_dir = options.cache_dir.empty() ? DefaultCacheDir() : options.cache_dir};
  TANDEM_ASSIGN_OR_RETURN(const ModelPlan model, Model::Plan(model_options, backend));
  TANDEM_ASSIGN_OR_RETURN(
      const KvLayout layout,
      KvLayout::Make(model.config, backend, model.compute_dtype, options.block_size));
  const ModelFacts facts = {
      .max_positions = model.config.max_positions,
      .weights_bytes = static_cast<int64_t>(model.weights_bytes),
      .weights_are_shared = !model_options.cache_dir.empty(),
      .block_bytes = static_cast<int64_t>(layout.block_bytes),
      .token_scratch_bytes = ModelExecutor::TokenScratchBytes(model.config, model.compute_dtype),
      .logit_scratch_bytes = ModelExecutor::LogitScratchBytes(model.config, model.compute_dtype)};
  TANDEM_ASSIGN_OR_RETURN(
      const WorkerSizes sizes,
      SizeWorker(options, facts, machine,
                 options.transport == "ucx" ? std::optional(MeasureSharedMemory()) : std::nullopt));
  return WorkerPlan{model_options, model, layout, sizes};
}

}  // namespace tandem
