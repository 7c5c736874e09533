#include "tests/support/model_fleet.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/cpu/kernel_table.h"
#include "runtime/base/check.h"
#include "tests/support/model_format.h"
#include "tests/support/test_backend.h"

namespace tandem {

std::vector<std::string> PathsOfOneClass() {
  std::vector<std::string> paths;
  for (const Isa& isa : KnownIsas()) {
    const bool is_generic = isa.name == std::string_view("generic");  // A class of its own.
    if (isa.kernels() != nullptr && (!is_generic || paths.empty())) paths.emplace_back(isa.name);
    if (is_generic) break;
  }
  return paths;
}

LoadedModel::LoadedModel(const std::string& folder, const std::string& format,
                         const std::string& path, int num_threads) {
  BackendOptions options{.isa = path, .num_threads = num_threads};
  if (path == kFencedPath) options = {.device = "fenced", .num_threads = num_threads};
  if (path == kGpuPath) options = {.device = kEmulatedDevice, .isa = "fma"};
  if (path == kTensorPath) options = {.device = kEmulatedDevice, .isa = "tensor"};
  auto backend = CreateTestBackend(options);
  TANDEM_CHECK(backend.ok()) << backend.status().ToString();
  backend_ = *std::move(backend);
  auto model = Model::Load(InFormat(folder, format), backend_.get());
  TANDEM_CHECK(model.ok()) << model.status().ToString();
  model_ = *std::move(model);
}

ModelFleetExecutor::ModelFleetExecutor(const ModelExecutorOptions& options,
                                       const LoadedModel& model, const KvPoolMemory& pool)
    : pool_(static_cast<uint8_t*>(pool.base)) {
  KvPoolMemory memory = pool;
  memory.kind = model.backend()->pool_kind();  // An emulated GPU has the host's addresses.
  auto executor = ModelExecutor::Create(options, &model.model(), model.backend(), memory);
  TANDEM_CHECK(executor.ok()) << executor.status().ToString();
  executor_ = *std::move(executor);
}

std::span<uint8_t> ModelFleetExecutor::BlockBytes(BlockId block) {
  return {pool_ + static_cast<size_t>(block) * executor_->block_bytes(), executor_->block_bytes()};
}

void ModelFleetExecutor::Count(const StepInput& input) {
  largest_batch_ = std::max(largest_batch_, static_cast<int32_t>(input.runs.size()));
  for (const SequenceRun& run : input.runs) {
    const auto tokens = static_cast<int32_t>(run.token_ids.size());
    computed_tokens_ += tokens;
    largest_run_ = std::max(largest_run_, tokens);
  }
}

absl::Status ModelFleetExecutor::Execute(const StepInput& input, StepOutput* output) {
  Count(input);
  return executor_->Execute(input, output);
}

}  // namespace tandem
