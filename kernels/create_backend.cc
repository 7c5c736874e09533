#include "kernels/create_backend.h"

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.device == "reference") return CreateReferenceBackend();
  if (options.device == "cpu") {
    return CreateCpuBackend({.isa = options.isa, .num_threads = options.num_threads});
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("unknown device \"%s\"; known: cpu, reference", options.device));
}

}  // namespace tandem
