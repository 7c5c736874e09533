// Linear layers on the CPU: packing, and sharing a GEMM among threads.
//
// Packed weights are panels: [panel][unit of k][output of the panel][k of the unit], outputs past N
// and what a last unit lacks filled with zeros; with 8 bits then [output of the panel] scales. With
// 4 bits [output of the panel] scales in two bytes and zeros in one lie before each group's units.
// Half of a gated layer's panel are gates, the other half their ups.
// Threads share panels, never k.

#ifndef TANDEM_KERNELS_CPU_CPU_LINEAR_H_
#define TANDEM_KERNELS_CPU_CPU_LINEAR_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/support/host_args.h"

namespace tandem {

PackedFormat CpuPackedFormat(const GemmKernels& gemm, const LinearSpec& spec);
void CpuPack(const GemmKernels& gemm, const LinearSpec& spec, std::span<const WeightPart> parts,
             std::byte* packed);
// `gemm` outlives the operation, as `packed` does.
std::unique_ptr<LinearOp> CpuPrepare(const GemmKernels& gemm, const LinearSpec& spec,
                                     const std::byte* packed);
// ResourceExhausted if there is no memory for packed activations.
absl::Status CpuLinear(const HostLinearArgs& args, ThreadPool* pool, Scratch* scratch);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_CPU_LINEAR_H_
