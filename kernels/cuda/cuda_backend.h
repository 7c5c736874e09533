// The backend of NVIDIA's GPUs, with the KV tiles and so the kv_class of the CPU's class `fma`
// (docs/numerics.md). Where products of bf16 are fused multiply-adds it has that class's bits, too:
// a GPU and a CPU continue each other's streams, where the probe of a GPU's numbers says so. On the
// tensor cores they are many times as fast, and a class of their own.

#ifndef TANDEM_KERNELS_CUDA_CUDA_BACKEND_H_
#define TANDEM_KERNELS_CUDA_CUDA_BACKEND_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"

namespace tandem {

// For the process's first GPU (CUDA_VISIBLE_DEVICES says which that is), with one of the
// instruction sets that a GPU has (create_backend.h): "fma"; "mma"; any other name is "tensor", by
// which products of four warps (wgmma) are tried, and taken if they have the bits of a warp's.
// FailedPrecondition if there is no GPU, or if it is older than our kernels.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::string_view isa);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_BACKEND_H_
