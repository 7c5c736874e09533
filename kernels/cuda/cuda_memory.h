// What the CUDA runtime says, as a status; and memory of a device or pinned memory of the host that
// grows to the most ever asked for.

#ifndef TANDEM_KERNELS_CUDA_CUDA_MEMORY_H_
#define TANDEM_KERNELS_CUDA_CUDA_MEMORY_H_

#include <cuda_runtime.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// ResourceExhausted if memory is what lacks, DataLoss if the error stays (Backend), else Internal;
// `doing` says what failed.
absl::Status CudaStatus(cudaError_t error, const char* doing);

// Memory for what is enqueued on one stream, one after the other. Engine thread only.
class CudaScratch {
 public:
  enum class Kind : uint8_t { kDevice, kPinned };
  CudaScratch(Kind kind, cudaStream_t stream) : kind_(kind), stream_(stream) {}
  ~CudaScratch();
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;

  // 256-byte aligned, contents undefined. Whoever grows it waits until all that is enqueued has
  // finished with what was there before.
  absl::StatusOr<void*> Get(size_t size_bytes);
  // The most ever asked for.
  size_t size_bytes() const { return size_bytes_; }

 private:
  void Free();

  const Kind kind_;
  const cudaStream_t stream_;
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_MEMORY_H_
