// Rotary embedding, KV writes and paged attention on a GPU, with the KV tiles and the bits of the
// class `fma` (kernels/cpu/attention_kernels.inc.h). Each enqueues on `stream` and returns what the
// launches said; arguments have been validated and point at device memory.

#ifndef TANDEM_KERNELS_CUDA_CUDA_ATTENTION_H_
#define TANDEM_KERNELS_CUDA_CUDA_ATTENTION_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/processor_limits.h"
#include "kernels/support/host_args.h"

namespace tandem {

// A tile that attention reads: the CPU's.
const char* CudaTileFormat(KvType type);
size_t CudaTileBytes(const KvTileShape& shape);
// The least shared memory that a block of attention needs: some devices have less.
size_t CudaAttentionSharedBytes(const KvTileShape& shape, DType compute_dtype);

cudaError_t CudaRotaryTable(const HostRotaryTableArgs& args, cudaStream_t stream);
cudaError_t CudaRotaryKvWrite(const HostRotaryKvWriteArgs& args, cudaStream_t stream);

// Bytes that decode attention wants for the parts of sequences that it splits; may be 0.
size_t CudaDecodeScratchBytes(const HostDecodeAttentionArgs& args, const ProcessorLimits& limits);
cudaError_t CudaDecodeAttention(const HostDecodeAttentionArgs& args, void* scratch,
                                const ProcessorLimits& limits, cudaStream_t stream);
cudaError_t CudaPrefillAttention(const HostPrefillAttentionArgs& args,
                                 const ProcessorLimits& limits, cudaStream_t stream);

// The same on the tensor cores, with their bits, for the shapes that there are kernels for.
bool HasTensorAttention(const KvTileShape& shape, DType compute_dtype);
size_t TensorDecodeScratchBytes(const HostDecodeAttentionArgs& args, const ProcessorLimits& limits);
cudaError_t TensorDecodeAttention(const HostDecodeAttentionArgs& args, void* scratch,
                                  const ProcessorLimits& limits, cudaStream_t stream);
size_t TensorPrefillScratchBytes(const KvTileShape& shape, const ProcessorLimits& limits);
cudaError_t TensorPrefillAttention(const HostPrefillAttentionArgs& args, void* scratch,
                                   const ProcessorLimits& limits, cudaStream_t stream);
// For KV in bf16, with the same bits and scratch memory, where limits.has_warpgroup_products says
// so.
cudaError_t WgmmaPrefillAttention(const HostPrefillAttentionArgs& args, void* scratch,
                                  const ProcessorLimits& limits, cudaStream_t stream);

// How many sums of products of four warps were to be compared with those of one, were, and have
// other bits. None is compared where the kernels that run have no such products.
struct WarpgroupTrial {
  uint64_t wanted = 0, compared = 0, different = 0;
  bool same() const { return compared == wanted && different == 0; }
};
// On the stream's device. Waits for the stream.
cudaError_t TryWarpgroups(cudaStream_t stream, WarpgroupTrial* trial);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_ATTENTION_H_
