// Row operations on a GPU, bit for bit those of kernels/reference. Each enqueues on `stream` and
// returns what the launch said; arguments have been validated and point at device memory.

#ifndef TANDEM_KERNELS_CUDA_CUDA_ROWS_H_
#define TANDEM_KERNELS_CUDA_CUDA_ROWS_H_

#include <cuda_runtime.h>

#include "kernels/support/host_args.h"

namespace tandem {

cudaError_t CudaEmbedding(const HostEmbeddingArgs& args, cudaStream_t stream);
cudaError_t CudaRmsNorm(const HostRmsNormArgs& args, cudaStream_t stream);
cudaError_t CudaLayerNorm(const HostLayerNormArgs& args, cudaStream_t stream);
cudaError_t CudaActivate(const HostActivateArgs& args, cudaStream_t stream);
cudaError_t CudaAdd(const HostAddArgs& args, cudaStream_t stream);
cudaError_t CudaSoftCap(const HostSoftCapArgs& args, cudaStream_t stream);
cudaError_t CudaGatherRows(const HostGatherRowsArgs& args, cudaStream_t stream);
cudaError_t CudaLogSoftmax(const HostLogSoftmaxArgs& args, cudaStream_t stream);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_ROWS_H_
