#include "kernels/cuda/cuda_graphs.h"

#include "kernels/cuda/cuda_memory.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

// Each takes memory of the host and of the device.
constexpr size_t kMaxGraphs = 128;

}  // namespace

absl::Status CudaGraphs::Replay(std::span<const int64_t> key,
                                absl::FunctionRef<absl::Status()> enqueue) {
  if (graphs_.size() >= kMaxGraphs) Forget();
  const std::vector<int64_t> name(key.begin(), key.end());
  const auto found = graphs_.find(name);
  if (found == graphs_.end()) {
    const absl::Status status = enqueue();
    // Only now, as `enqueue` may forget.
    if (status.ok()) graphs_[name] = nullptr;
    return status;
  }
  absl::Status launched;
  if (found->second == nullptr) {
    absl::StatusOr<cudaGraphExec_t> captured = Capture(enqueue);
    launched = captured.status();
    if (launched.ok()) found->second = *captured;
  }
  if (launched.ok()) {
    launched = CudaStatus(cudaGraphLaunch(found->second, stream_), "launching a graph");
  }
  if (!absl::IsResourceExhausted(launched)) return launched;
  // Graphs are what a step can do without.
  Forget();
  return enqueue();
}

absl::StatusOr<cudaGraphExec_t> CudaGraphs::Capture(absl::FunctionRef<absl::Status()> enqueue) {
  constexpr const char* kDoing = "capturing a graph";
  TANDEM_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), kDoing));
  absl::Status status = enqueue();
  cudaGraph_t graph = nullptr;
  status.Update(CudaStatus(cudaStreamEndCapture(stream_, &graph), kDoing));
  cudaGraphExec_t executable = nullptr;
  if (status.ok()) {
    status = CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "instantiating a graph");
  }
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  if (!status.ok()) return status;
  return executable;
}

void CudaGraphs::Forget() {
  for (const auto& [key, graph] : graphs_) {
    if (graph != nullptr) (void)cudaGraphExecDestroy(graph);
  }
  graphs_.clear();
}

}  // namespace tandem
