#include "kernels/cuda/cuda_copier.h"

#include <utility>

#include "kernels/cuda/cuda_blocks.h"
#include "runtime/base/status_macros.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<CudaCopier>> CudaCopier::Create() {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream,
                          CudaStream::Create(CudaStream::Kind::kUrgent));
  return std::unique_ptr<CudaCopier>(new CudaCopier(std::move(stream)));
}

absl::Status CudaCopier::Copy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind) {
  return CudaStatus(cudaMemcpyAsync(to, from, size_bytes, kind, stream_->get()),
                    "copying a KV block");
}

absl::Status CudaCopier::Download(void* to, const void* device, size_t size_bytes) {
  MutexLock lock(&mu_);
  TANDEM_RETURN_IF_ERROR(Copy(to, device, size_bytes, cudaMemcpyDeviceToHost));
  return stream_->Synchronize();
}

absl::StatusOr<uint32_t> CudaCopier::Upload(void* device, const void* from, size_t size_bytes) {
  return CopyAndSum(device, from, size_bytes, cudaMemcpyHostToDevice);
}

absl::StatusOr<uint32_t> CudaCopier::CopyWithin(void* device, const void* from, size_t size_bytes) {
  return CopyAndSum(device, from, size_bytes, cudaMemcpyDeviceToDevice);
}

absl::StatusOr<std::byte*> CudaCopier::AllocatePinned(size_t size_bytes) {
  void* memory = nullptr;
  TANDEM_RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&memory, size_bytes),
                                    "allocating pinned memory for KV blocks on their way"));
  return static_cast<std::byte*>(memory);
}

// What fails here has failed before, and was told.
void CudaCopier::FreePinned(std::byte* memory) { (void)cudaFreeHost(memory); }

absl::StatusOr<uint32_t> CudaCopier::CopyAndSum(void* device, const void* from, size_t size_bytes,
                                                cudaMemcpyKind kind) {
  uint32_t crc32c = 0;
  MutexLock lock(&mu_);
  TANDEM_ASSIGN_OR_RETURN(void* const checksum, checksum_.Get(sizeof(crc32c)));
  const ChecksumLaunch launch{.base = static_cast<const std::byte*>(device),
                              .block_stride_bytes = size_bytes,
                              .checksums = static_cast<uint32_t*>(checksum),
                              .count = 1,
                              .blocks = {0}};
  // Nothing of what is enqueued may still be under way when this returns.
  absl::Status status = Copy(device, from, size_bytes, kind);
  if (status.ok()) {
    status = CudaStatus(CudaChecksumBlocks(launch, stream_->get()), "summing a KV block");
  }
  if (status.ok()) status = Copy(&crc32c, checksum, sizeof(crc32c), cudaMemcpyDeviceToHost);
  status.Update(stream_->Synchronize());
  if (!status.ok()) return status;
  return crc32c;
}

}  // namespace tandem
