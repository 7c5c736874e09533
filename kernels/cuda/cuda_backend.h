// The backend of NVIDIA's GPUs, with the KV tiles and so the kv_class of the CPU's class `fma`
// (docs/numerics.md). Where products of bf16 are fused multiply-adds it has that class's bits, too:
// a GPU and a CPU continue each other's streams, where the probe of a GPU's numbers says so. On the
// tensor cores they are many times as fast, and a class of their own.

#ifndef TANDEM_KERNELS_CUDA_CUDA_BACKEND_H_
#define TANDEM_KERNELS_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "kernels/cuda/packed_weights.h"

namespace tandem {

// For the process's first GPU (CUDA_VISIBLE_DEVICES says which that is). FailedPrecondition if
// there is none, or if it is older than our kernels. Products of four warps (wgmma) are tried, and
// taken if they have the bits of a warp's, unless `tries_warpgroups` is false.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(CudaProducts products,
                                                           bool tries_warpgroups = true);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_BACKEND_H_
