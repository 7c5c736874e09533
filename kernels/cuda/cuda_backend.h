// The backend of NVIDIA's GPUs. It computes with the bits, the KV tiles and so the kv_class of the
// CPU's class `fma` (docs/numerics.md): a GPU and a CPU continue each other's streams, where the
// probe of a GPU's numbers says so.

#ifndef TANDEM_KERNELS_CUDA_CUDA_BACKEND_H_
#define TANDEM_KERNELS_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"

namespace tandem {

// For the process's first GPU (CUDA_VISIBLE_DEVICES says which that is). FailedPrecondition if
// there is none, or if it is older than our kernels.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend();

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_BACKEND_H_
