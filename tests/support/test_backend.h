// Backends for tests: those of CreateBackend, and "emulated", a GPU that is none.

#ifndef TANDEM_TESTS_SUPPORT_TEST_BACKEND_H_
#define TANDEM_TESTS_SUPPORT_TEST_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/create_backend.h"

namespace tandem {

inline constexpr char kEmulatedDevice[] = "emulated";

// As CreateBackend. The emulated GPU has the isa "fma" or "tensor"; FailedPrecondition where it is
// not built or this machine is not one for it.
absl::StatusOr<std::unique_ptr<Backend>> CreateTestBackend(const BackendOptions& options);

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_TEST_BACKEND_H_
