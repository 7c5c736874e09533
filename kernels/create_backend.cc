#include "kernels/create_backend.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/fenced/fenced_backend.h"
#include "kernels/reference/reference_backend.h"
#include "runtime/base/status_macros.h"

#if defined(TANDEM_CUDA)
#include "kernels/cuda/cuda_backend.h"
#endif

namespace tandem {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> CreateGpuBackend(const std::string& device) {
#if defined(TANDEM_CUDA)
  int index = 0;
  if (device != "cuda" && !absl::SimpleAtoi(device.substr(5), &index)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device \"%s\": behind \"cuda:\" comes a number", device));
  }
  return CreateCudaBackend(index);
#else
  return absl::FailedPreconditionError(
      absl::StrFormat("device \"%s\": this program was built without CUDA", device));
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.device == "reference") return CreateReferenceBackend();
  const bool own_pool = options.device == "fenced_pool";
  if (options.device == "cpu" || options.device == "fenced" || own_pool) {
    TANDEM_ASSIGN_OR_RETURN(
        std::unique_ptr<Backend> cpu,
        CreateCpuBackend({.isa = options.isa, .num_threads = options.num_threads}));
    if (options.device == "cpu") return cpu;
    return CreateFencedBackend(std::move(cpu), own_pool ? MemoryKind::kDevice : MemoryKind::kHost);
  }
  if (options.device == "cuda" || options.device.starts_with("cuda:")) {
    return CreateGpuBackend(options.device);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "unknown device \"%s\"; known: cpu, cuda:N, reference, fenced, fenced_pool", options.device));
}

}  // namespace tandem
