// Which GPUs a process sees: those of CUDA_VISIBLE_DEVICES, which CUDA reads when it is first used.

#ifndef TANDEM_KERNELS_CUDA_VISIBLE_GPUS_H_
#define TANDEM_KERNELS_CUDA_VISIBLE_GPUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// The name of number `number` of those that `visible` lists, or its number where that is null, as
// the variable has it. InvalidArgument, with both, if there are not so many.
absl::StatusOr<std::string> NameOfGpu(const char* visible, int number);

// How many the process sees; 0 if CUDA cannot be used.
int NumVisibleGpus();

// From now on, of those that the process sees, that one alone, on all of its threads; it has not
// used CUDA yet. Errors of NameOfGpu.
absl::Status SeeOneGpu(int number);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_VISIBLE_GPUS_H_
