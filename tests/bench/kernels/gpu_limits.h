// What a GPU's memory gives at most: the limit that gpu_bench's figures are shares of.

#ifndef TANDEM_TESTS_BENCH_KERNELS_GPU_LIMITS_H_
#define TANDEM_TESTS_BENCH_KERNELS_GPU_LIMITS_H_

#include <cuda_runtime.h>

#include <cstddef>

namespace tandem {

// Enqueues on `stream` one read of all of `data`, a multiple of 16 bytes; `sink` has 4 bytes.
cudaError_t ReadStream(const void* data, size_t size_bytes, void* sink, cudaStream_t stream);

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_KERNELS_GPU_LIMITS_H_
