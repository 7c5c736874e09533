#include "runtime/transport/nccl/nccl_library.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(const std::string& interface) {
  return absl::FailedPreconditionError(
      "--transport: nccl is not in this build, which was made without CUDA or did not find NCCL "
      "(NCCL=1 tools/dev/cuda_toolkit fetches it); choose grpc");
}

}  // namespace tandem
