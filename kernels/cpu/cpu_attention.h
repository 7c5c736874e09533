// Attention on the CPU: sharing sequences, KV heads, rows and segments among threads.

#ifndef TANDEM_KERNELS_CPU_CPU_ATTENTION_H_
#define TANDEM_KERNELS_CPU_CPU_ATTENTION_H_

#include "absl/status/status.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/support/host_args.h"

namespace tandem {

// Both split a context at segment borders only. ResourceExhausted if there is no memory for the
// parts of split contexts.
absl::Status CpuDecodeAttention(const AttentionKernels& kernels,
                                const HostDecodeAttentionArgs& args, ThreadPool* pool,
                                Scratch* scratch);
absl::Status CpuPrefillAttention(const AttentionKernels& kernels,
                                 const HostPrefillAttentionArgs& args, ThreadPool* pool,
                                 Scratch* scratch);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_CPU_ATTENTION_H_
