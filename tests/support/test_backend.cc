#include "tests/support/test_backend.h"

#if defined(TANDEM_EMULATED)
#include "kernels/cuda/cuda_backend.h"
#endif

namespace tandem {

absl::StatusOr<std::unique_ptr<Backend>> CreateTestBackend(const BackendOptions& options) {
  if (options.device != kEmulatedDevice) return CreateBackend(options);
#if defined(TANDEM_EMULATED)
  // It computes with these.
  if (const auto avx2 = CreateBackend({.isa = "avx2"}); !avx2.ok()) return avx2.status();
  return CreateCudaBackend(options.isa);
#else
  return absl::FailedPreconditionError("no GPU is emulated in this build");
#endif
}

}  // namespace tandem
