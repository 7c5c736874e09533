// Steps that come again, as graphs: one call of the host enqueues all kernels of one.

#ifndef TANDEM_KERNELS_CUDA_CUDA_GRAPHS_H_
#define TANDEM_KERNELS_CUDA_CUDA_GRAPHS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// Engine thread only.
class CudaGraphs {
 public:
  explicit CudaGraphs(cudaStream_t stream) : stream_(stream) {}
  ~CudaGraphs() { Forget(); }
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;

  // Backend::Replay. What comes once is enqueued; the second time it is captured on its way. Where
  // memory lacks for that, all graphs are forgotten and it is enqueued.
  absl::Status Replay(std::span<const int64_t> key, absl::FunctionRef<absl::Status()> enqueue);

  // When memory that operations had may be another's. What runs is not disturbed.
  void Forget();

 private:
  absl::StatusOr<cudaGraphExec_t> Capture(absl::FunctionRef<absl::Status()> enqueue);

  const cudaStream_t stream_;
  std::map<std::vector<int64_t>, cudaGraphExec_t> graphs_;  // Null: it has come once.
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_GRAPHS_H_
