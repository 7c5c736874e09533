#include "kernels/cuda/cuda_stream.h"

#include <limits>

#include "kernels/cuda/cuda_memory.h"
#include "runtime/base/status_macros.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(Kind kind) {
  // CUDA takes the nearest that there is. The lowest number goes first, and 0 last.
  const int priority = kind == Kind::kUrgent ? std::numeric_limits<int>::min() : 0;
  cudaStream_t stream = nullptr;
  TANDEM_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "creating a stream"));
  return std::unique_ptr<CudaStream>(new CudaStream(stream));
}

CudaStream::~CudaStream() {
  // What fails here has failed before, and was told.
  (void)cudaStreamSynchronize(stream_);
  for (const Point& point : points_) {
    if (point.event != nullptr) (void)cudaEventDestroy(point.event);
  }
  for (cudaEvent_t event : free_events_) (void)cudaEventDestroy(event);
  (void)cudaStreamDestroy(stream_);
}

uint64_t CudaStream::Record() {
  cudaEvent_t event = nullptr;
  if (!free_events_.empty()) {
    event = free_events_.back();
    free_events_.pop_back();
  } else if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
    event = nullptr;
  }
  if (event != nullptr && cudaEventRecord(event, stream_) != cudaSuccess) {
    free_events_.push_back(event);
    event = nullptr;
  }
  points_.push_back({++last_ticket_, event});
  return last_ticket_;
}

absl::Status CudaStream::Wait(uint64_t ticket) {
  while (!points_.empty() && points_.front().ticket <= ticket) {
    const Point point = points_.front();
    // Those before the last are passed with it, at once.
    TANDEM_RETURN_IF_ERROR(CudaStatus(
        point.event != nullptr ? cudaEventSynchronize(point.event) : cudaStreamSynchronize(stream_),
        "waiting for the device"));
    points_.pop_front();
    if (point.event != nullptr) free_events_.push_back(point.event);
  }
  return absl::OkStatus();
}

absl::Status CudaStream::Synchronize() {
  TANDEM_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "waiting for the device"));
  return Wait(last_ticket_);
}

}  // namespace tandem
