// What a device has of processors, and a block of threads of memory that it shares.

#ifndef TANDEM_KERNELS_CUDA_PROCESSOR_LIMITS_H_
#define TANDEM_KERNELS_CUDA_PROCESSOR_LIMITS_H_

#include <cstddef>

namespace tandem {

struct ProcessorLimits {
  int num_processors;
  size_t max_shared_bytes;  // of a block
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_PROCESSOR_LIMITS_H_
