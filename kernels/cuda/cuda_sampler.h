// Backend::Sample of a GPU: what a call asks, as its kernels (cuda_sampling.h) read it, and results
// from what they answer. Logits stay on the device.

#ifndef TANDEM_KERNELS_CUDA_CUDA_SAMPLER_H_
#define TANDEM_KERNELS_CUDA_CUDA_SAMPLER_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/support/host_args.h"

namespace tandem {

// Engine thread only.
class CudaSampler {
 public:
  explicit CudaSampler(cudaStream_t stream)
      : stream_(stream), memory_(CudaScratch::Kind::kDevice, stream) {}
  CudaSampler(const CudaSampler&) = delete;
  CudaSampler& operator=(const CudaSampler&) = delete;

  // Enqueues what gives the results of `args`, which has been validated. They are there once Finish
  // has been called with a point of the stream from `ticket` on.
  absl::Status Enqueue(const HostSampleArgs& args, uint64_t ticket);

  // The stream has passed the point `ticket`; or, not `ok`, the device has failed, and nobody waits
  // for results any more.
  void Finish(uint64_t ticket, bool ok);

 private:
  // A call of which the stream may still read or write something.
  struct Call {
    explicit Call(cudaStream_t stream)
        : upload(CudaScratch::Kind::kPinned, stream),
          download(CudaScratch::Kind::kPinned, stream) {}

    CudaScratch upload, download;
    uint64_t ticket = 0;
    HostSampleArgs args = {};
    std::vector<absl::Status> checked;   // of each query
    const std::byte* answers = nullptr;  // Null: not all of it could be enqueued.
    size_t top_place = 0;                // behind the answers
  };

  static void WriteResults(const Call& call);

  const cudaStream_t stream_;
  CudaScratch memory_;
  std::deque<std::unique_ptr<Call>> running_;  // oldest first
  std::vector<std::unique_ptr<Call>> free_;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_SAMPLER_H_
