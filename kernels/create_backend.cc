#include "kernels/create_backend.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/fenced/fenced_backend.h"
#include "kernels/reference/reference_backend.h"
#include "runtime/base/status_macros.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.device == "reference") return CreateReferenceBackend();
  if (options.device == "cpu" || options.device == "fenced") {
    TANDEM_ASSIGN_OR_RETURN(
        std::unique_ptr<Backend> cpu,
        CreateCpuBackend({.isa = options.isa, .num_threads = options.num_threads}));
    return options.device == "cpu" ? std::move(cpu) : CreateFencedBackend(std::move(cpu));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("unknown device \"%s\"; known: cpu, reference, fenced", options.device));
}

}  // namespace tandem
