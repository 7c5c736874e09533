#include "kernels/cuda/cuda_memory.h"

#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"

namespace tandem {

namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    // Those of which CUDA's manual says that the process must end before it can use CUDA again;
    // what the driver's Xid 48, 94 and 95 tell, which end whoever computed there, and their like of
    // a link; and what a GPU gives that is no longer there (Xid 79), or its context.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return absl::OkStatus();
  return {CodeOf(error), absl::StrFormat("%s: %s (%s)", doing, cudaGetErrorString(error),
                                         cudaGetErrorName(error))};
}

CudaScratch::~CudaScratch() { Free(); }

void CudaScratch::Free() {
  // What fails here has failed before, and was told.
  if (data_ != nullptr) (void)(kind_ == Kind::kDevice ? cudaFree(data_) : cudaFreeHost(data_));
  data_ = nullptr;
  size_bytes_ = 0;
}

absl::StatusOr<void*> CudaScratch::Get(size_t size_bytes) {
  if (size_bytes > size_bytes_) {
    TANDEM_RETURN_IF_ERROR(
        CudaStatus(cudaStreamSynchronize(stream_), "waiting for scratch memory"));
    Free();
    void* data = nullptr;
    TANDEM_RETURN_IF_ERROR(CudaStatus(
        kind_ == Kind::kDevice ? cudaMalloc(&data, size_bytes) : cudaMallocHost(&data, size_bytes),
        "allocating scratch memory"));
    data_ = data;
    size_bytes_ = size_bytes;
  }
  return data_;
}

}  // namespace tandem
