// The one place that names the backends.

#ifndef TANDEM_KERNELS_CREATE_BACKEND_H_
#define TANDEM_KERNELS_CREATE_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"

namespace tandem {

struct BackendOptions {
  std::string device = "cpu";  // "cpu", or "reference": plain scalar code, the specification
  // cpu only: "auto" (the best this machine has), "avx512bf16", "avx512", "avx2", "generic"
  std::string isa = "auto";
  int num_threads = 1;  // cpu only: 1 to 1,024, the calling thread included
};

// InvalidArgument for an unknown name or a thread count out of range; FailedPrecondition if this
// machine lacks the instruction set.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CREATE_BACKEND_H_
