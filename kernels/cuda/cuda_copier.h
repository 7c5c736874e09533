// Copies of blocks to, from and within a GPU, on a stream of their own beside the steps
// (runtime/base/device_copier.h).

#ifndef TANDEM_KERNELS_CUDA_CUDA_COPIER_H_
#define TANDEM_KERNELS_CUDA_CUDA_COPIER_H_

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_stream.h"
#include "runtime/base/device_copier.h"
#include "runtime/base/mutex.h"

namespace tandem {

// One copy at a time: there is one way to the device.
class CudaCopier final : public DeviceCopier {
 public:
  static absl::StatusOr<std::unique_ptr<CudaCopier>> Create();

  absl::Status Download(void* to, const void* device, size_t size_bytes) override EXCLUDES(mu_);
  absl::StatusOr<uint32_t> Upload(void* device, const void* from, size_t size_bytes) override
      EXCLUDES(mu_);
  absl::StatusOr<uint32_t> CopyWithin(void* device, const void* from, size_t size_bytes) override
      EXCLUDES(mu_);
  absl::StatusOr<std::byte*> AllocatePinned(size_t size_bytes) override;
  void FreePinned(std::byte* memory) override;

 private:
  explicit CudaCopier(std::unique_ptr<CudaStream> stream)
      : stream_(std::move(stream)), checksum_(CudaScratch::Kind::kDevice, stream_->get()) {}
  absl::Status Copy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind)
      REQUIRES(mu_);
  absl::StatusOr<uint32_t> CopyAndSum(void* device, const void* from, size_t size_bytes,
                                      cudaMemcpyKind kind) EXCLUDES(mu_);

  Mutex mu_;
  const std::unique_ptr<CudaStream> stream_;
  CudaScratch checksum_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_COPIER_H_
