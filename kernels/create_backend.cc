#include "kernels/create_backend.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/fenced/fenced_backend.h"
#include "kernels/reference/reference_backend.h"
#include "runtime/base/status_macros.h"

#if defined(TANDEM_CUDA)
#include "kernels/cuda/cuda_backend.h"
#endif

namespace tandem {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.device == "reference") return CreateReferenceBackend();
  const bool own_pool = options.device == "fenced_pool";
  if (options.device == "cpu" || options.device == "fenced" || own_pool) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Backend> cpu,
                            CreateCpuBackend({.isa = options.isa,
                                              .num_threads = options.num_threads,
                                              .niceness = options.niceness}));
    if (options.device == "cpu") return cpu;
    return CreateFencedBackend(std::move(cpu), own_pool ? MemoryKind::kDevice : MemoryKind::kHost);
  }
  if (options.device == "cuda") {
#if defined(TANDEM_CUDA)
    if (options.isa == "fma") return CreateCudaBackend(CudaProducts::kFma);
    if (options.isa == "auto" || options.isa == "tensor") {
      return CreateCudaBackend(CudaProducts::kTensorCores);
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "unknown instruction set \"%s\" of a GPU; known: auto, tensor, fma", options.isa));
#else
    return absl::FailedPreconditionError("this program was built without CUDA");
#endif
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "unknown device \"%s\"; known: cpu, cuda, reference, fenced, fenced_pool", options.device));
}

}  // namespace tandem
