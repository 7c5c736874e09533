#include "kernels/create_backend.h"

#include "absl/strings/str_format.h"
#include "kernels/reference/reference_backend.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.device == "reference") return CreateReferenceBackend();
  return absl::InvalidArgumentError(
      absl::StrFormat("unknown device \"%s\"; known: reference", options.device));
}

}  // namespace tandem
