// One stream of a device, and points of it to wait for.

#ifndef TANDEM_KERNELS_CUDA_CUDA_STREAM_H_
#define TANDEM_KERNELS_CUDA_CUDA_STREAM_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// Engine thread only.
class CudaStream {
 public:
  // A stream of steps; or an urgent one: what is enqueued goes first where a multiprocessor has
  // room, as steps never end.
  enum class Kind : uint8_t { kSteps, kUrgent };
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(Kind kind = Kind::kSteps);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }

  // The point after all that is enqueued. Without an event for it, who waits for it waits for all
  // that is enqueued by then.
  uint64_t Record();
  // What Record would return now.
  uint64_t next_ticket() const { return last_ticket_ + 1; }
  // Returns when the stream has passed the point; 0 is passed.
  absl::Status Wait(uint64_t ticket);
  absl::Status Synchronize();

 private:
  struct Point {
    uint64_t ticket;
    cudaEvent_t event;  // Null: there was none.
  };
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}

  const cudaStream_t stream_;
  uint64_t last_ticket_ = 0;
  std::deque<Point> points_;  // not yet known to be passed, in order
  std::vector<cudaEvent_t> free_events_;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_STREAM_H_
