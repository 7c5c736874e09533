// What a device has of processors, and a block of threads of memory that it shares.

#ifndef TANDEM_KERNELS_CUDA_PROCESSOR_LIMITS_H_
#define TANDEM_KERNELS_CUDA_PROCESSOR_LIMITS_H_

#include <cstddef>

namespace tandem {

// What a block may have at least: on no GPU that there are kernels for is it less.
inline constexpr size_t kLeastSharedBytes = 99 * 1024;

struct ProcessorLimits {
  int num_processors;
  size_t max_shared_bytes;  // of a block
  // It has products of four warps, and they have the bits of a warp's (TryWarpgroups).
  bool has_warpgroup_products = false;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_PROCESSOR_LIMITS_H_
