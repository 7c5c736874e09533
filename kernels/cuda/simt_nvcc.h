// simt.h for nvcc. kernels/cuda/emulated/simt.h has the same names, and what they mean.

#ifndef TANDEM_KERNELS_CUDA_SIMT_NVCC_H_
#define TANDEM_KERNELS_CUDA_SIMT_NVCC_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace tandem {

// A pointer into the memory that a block's threads share.
template <typename T>
using SharedPtr = T*;

// The same address, for numbers of another type: `To` is no larger than the address is aligned.
template <typename To, typename From>
__device__ __forceinline__ SharedPtr<To> SharedCast(SharedPtr<From> from) {
  return reinterpret_cast<To*>(from);
}

// The running block's shared memory, LaunchShape::shared_bytes of it, 128-byte aligned.
__device__ __forceinline__ SharedPtr<std::byte> SharedMemory() {
  extern __shared__ __align__(128) unsigned char tandem_shared_memory[];
  return reinterpret_cast<std::byte*>(tandem_shared_memory);
}

// The least and the most threads of a block that nvcc is to make room for.
#define TANDEM_THREADS(threads, blocks_per_sm) __launch_bounds__(threads, blocks_per_sm)

// 16 bytes, each address 16-byte aligned, from global to shared memory, some time before the wait
// that covers them (cp.async.cg). Nobody else may touch either until then. If not `valid`, zeros
// are written and nothing is read.
__device__ __forceinline__ void CopyAsync16(SharedPtr<std::byte> to, const void* from,
                                            bool valid = true) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const uint32_t bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
               "r"(bytes)
               : "memory");
}

// What this thread has copied since the last commit becomes a group.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// All groups of this thread but the latest `kPending` are there; for other threads, behind a
// barrier.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// D += A · B of 16×32 and 32×8 numbers of 8 bits, summed in 32 bits (mma.m16n8k32, row by column).
__device__ __forceinline__ void MmaInt8(int32_t (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Enqueues `kernel`(args) with so many blocks.
template <typename Args>
cudaError_t Launch(void (*kernel)(Args), const LaunchShape& shape, cudaStream_t stream,
                   const Args& args) {
  if (shape.blocks == 0) return cudaSuccess;
  if (shape.shared_bytes > 48 * 1024) {
    const cudaError_t raised = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    static_cast<int>(shape.shared_bytes));
    if (raised != cudaSuccess) return raised;
  }
  kernel<<<static_cast<unsigned>(shape.blocks), shape.threads, shape.shared_bytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_SIMT_NVCC_H_
