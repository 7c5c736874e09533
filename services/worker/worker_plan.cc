#include "services/worker/worker_plan.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"
#include "runtime/execution/model_executor.h"
#include "runtime/model/packed_image.h"
#include "runtime/transport/nccl/nccl_transport.h"
#include "runtime/transport/stream/staging_buffers.h"
#include "runtime/transport/ucx/shm_folder.h"
#include "runtime/transport/ucx/ucx_memory.h"

namespace tandem {
namespace {

// What NCCL takes of a GPU for a communicator of two ranks, as users of NCCL have measured it; we
// have not.
constexpr int64_t kNcclCommunicatorBytes = int64_t{37} << 20;
// Each has one. More take of what is left beside KV.
constexpr int64_t kPlannedNcclLinks = 8;

// What moves blocks of that kind of pool. Whether UCX reaches a device's is for it to say
// (CheckUcxMemory).
absl::StatusOr<std::string> TransportOf(const std::string& transport, MemoryKind pool) {
  if (transport == "auto") return pool == MemoryKind::kHost ? "ucx" : "grpc";
  if (transport == "nccl" && pool == MemoryKind::kHost) {
    return absl::InvalidArgumentError(
        "--transport: nccl moves a GPU's memory, and the KV pool is the host's; choose grpc or "
        "ucx");
  }
  return transport;
}

absl::StatusOr<WorkerMemory> MeasureMemory(const std::string& transport, const Backend& backend,
                                           int64_t block_bytes) {
  WorkerMemory memory;
  TANDEM_ASSIGN_OR_RETURN(memory.device, backend.MeasureMemory());
  const bool on_device = backend.pool_kind() == MemoryKind::kDevice;
  if (transport == "ucx" && on_device) {
    memory.transport_bytes = UcxSlotPlan::DeviceBytes(block_bytes);
    memory.transport_owner =
        absl::StrFormat("UCX's slots for %d links", UcxSlotPlan::kPlannedLinks);
  } else if (transport == "ucx") {
    RemoveAbandonedPools();
    TANDEM_ASSIGN_OR_RETURN(memory.shared, ShmFolder::MeasureSpace());
  } else if (transport == "nccl") {
    memory.transport_bytes =
        NcclTransport::DeviceBytes(block_bytes) + kPlannedNcclLinks * kNcclCommunicatorBytes;
    memory.transport_owner =
        absl::StrFormat("NCCL's slots and communicators of %d links", kPlannedNcclLinks);
  } else if (on_device) {
    memory.pinned_bytes = StagingBuffers::PinnedBytes(block_bytes);
  }
  return memory;
}

}  // namespace

absl::StatusOr<WorkerPlan> PlanWorker(const SizeOptions& options, const MachineLimits& machine,
                                      const Backend& backend) {
  TANDEM_ASSIGN_OR_RETURN(const std::string transport,
                          TransportOf(options.transport, backend.pool_kind()));
  if (transport == "nccl" && options.gpu_share > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--transport: nccl joins GPUs, and %d workers share this one (--gpu-share); choose grpc or "
        "fewer workers",
        options.gpu_share));
  }
  const ModelOptions model_options{
      .folder = options.model,
      .load_format = options.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kSafetensors,
      .dtype = options.dtype,
      .weights = options.weights,
      .output_weights = options.output_weights,
      .int8_outliers = options.int8_outliers,
      .kv = options.kv_dtype,
      .cache_dir = options.cache_dir.empty() ? DefaultCacheDir() : options.cache_dir};
  TANDEM_ASSIGN_OR_RETURN(const ModelPlan model, Model::Plan(model_options, backend));
  TANDEM_ASSIGN_OR_RETURN(const KvLayout layout,
                          KvLayout::Make(model.config, backend, model.types, options.block_size));
  const CachePlace cache = FindCachePlace(model_options.cache_dir, model.weights.packed_bytes);
  const ModelSizes model_sizes = {
      .max_positions = model.config.max_positions,
      .weights_bytes = static_cast<int64_t>(model.weights.packed_bytes),
      .weights_are_shared = cache != CachePlace::kNone,
      .packing_bytes =
          cache == CachePlace::kImage ? 0 : static_cast<int64_t>(model.weights.converted_bytes),
      .block_bytes = static_cast<int64_t>(layout.block_bytes),
      .window = model.config.largest_window(),
      .token_scratch_bytes = ModelExecutor::TokenScratchBytes(model.config, model.types.compute) +
                             static_cast<int64_t>(model.weights.row_scratch_bytes),
      .logit_scratch_bytes = ModelExecutor::LogitScratchBytes(model.config, model.types.compute)};
  TANDEM_ASSIGN_OR_RETURN(const WorkerMemory memory,
                          MeasureMemory(transport, backend, model_sizes.block_bytes));
  TANDEM_ASSIGN_OR_RETURN(const WorkerSizes sizes,
                          SizeWorker(options, model_sizes, machine, memory));
  return WorkerPlan{transport, model_options, model, layout, sizes, memory};
}

void RemoveAbandonedPools() { ShmFolder::RemoveAbandoned(); }

}  // namespace tandem
