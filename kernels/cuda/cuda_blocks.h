// CRC-32C of blocks on a GPU (kernels/api/attention.h, ChecksumBlocks).

#ifndef TANDEM_KERNELS_CUDA_CUDA_BLOCKS_H_
#define TANDEM_KERNELS_CUDA_CUDA_BLOCKS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace tandem {

// So many blocks' ids fit a launch.
inline constexpr int kMaxChecksums = 512;

struct ChecksumLaunch {
  const std::byte* base;      // of block 0; 64-byte aligned
  size_t block_stride_bytes;  // and bytes of each block; a multiple of 64
  uint32_t* checksums;        // [count], of the device
  int count;                  // 1 to kMaxChecksums
  int32_t blocks[kMaxChecksums];
};

cudaError_t CudaChecksumBlocks(const ChecksumLaunch& launch, cudaStream_t stream);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_BLOCKS_H_
