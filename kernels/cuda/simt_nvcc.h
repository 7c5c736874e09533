// simt.h for nvcc. kernels/cuda/emulated/simt.h has the same names, and what they mean.

#ifndef TANDEM_KERNELS_CUDA_SIMT_NVCC_H_
#define TANDEM_KERNELS_CUDA_SIMT_NVCC_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "kernels/cuda/simt_wgmma.h"

namespace tandem {

// A pointer into the memory that a block's threads share.
template <typename T>
using SharedPtr = T*;

// The same address, for numbers of another type: `To` is no larger than the address is aligned.
template <typename To, typename From>
__device__ __forceinline__ SharedPtr<To> SharedCast(SharedPtr<From> from) {
  return reinterpret_cast<To*>(from);
}

// The running block's shared memory, LaunchShape::shared_bytes of it, 1,024-byte aligned.
__device__ __forceinline__ SharedPtr<std::byte> SharedMemory() {
  extern __shared__ __align__(1024) unsigned char tandem_shared_memory[];
  return reinterpret_cast<std::byte*>(tandem_shared_memory);
}
// How much that is.
__device__ __forceinline__ uint32_t SharedMemoryBytes() {
  uint32_t bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

// The most threads of a block, and the least blocks of a multiprocessor, that nvcc is to make room
// for.
#define TANDEM_THREADS(threads, blocks_per_sm) __launch_bounds__(threads, blocks_per_sm)

// As instructions take it.
__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Additions that threads make at the same time are all made. Sums of integers have no order.
__device__ __forceinline__ void AddGlobal(uint64_t* to, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), value);
}
// In halves, for which shared memory has an addition of its own; what is carried is the upper's.
__device__ __forceinline__ void AddShared(SharedPtr<uint64_t> to, uint64_t value) {
  auto* const halves = reinterpret_cast<uint32_t*>(to);
  const auto low = static_cast<uint32_t>(value);
  const uint32_t before = atomicAdd(halves, low);
  const uint32_t high = static_cast<uint32_t>(value >> 32) + (before + low < low ? 1u : 0u);
  if (high != 0) atomicAdd(halves + 1, high);
}

// 16 bytes, each address 16-byte aligned, from global to shared memory, some time before the wait
// that covers them (cp.async.cg). Nobody else may touch either until then. If not `valid`, zeros
// are written and nothing is read.
__device__ __forceinline__ void CopyAsync16(SharedPtr<std::byte> to, const void* from,
                                            bool valid = true) {
  const uint32_t bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)),
               "l"(from), "r"(bytes)
               : "memory");
}

// The same for 4 bytes, of which `bytes` are copied, 0 to 4; the others become zeros.
__device__ __forceinline__ void CopyAsync4(SharedPtr<std::byte> to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SharedAddress(to)), "l"(from),
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

// A barrier of phases (mbarrier) in shared memory. A phase ends once `arrivals` threads have
// arrived and all that was copied in it is there: for whoever has waited for its end, as is all
// that those had done who arrived. Threads may use it behind a __syncthreads().
__device__ __forceinline__ void InitPhases(SharedPtr<uint64_t> barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void Arrive(SharedPtr<uint64_t> barrier) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(SharedAddress(barrier))
      : "memory");
}
// Once what the thread has copied (CopyAsync16) is there; it waits for nothing.
__device__ __forceinline__ void ArriveBehindCopies(SharedPtr<uint64_t> barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}
// How many threads a warp counts for that arrives by CopyByWarp.
__device__ __forceinline__ constexpr int WarpCopyArrivals() {
#if __CUDA_ARCH__ >= 900
  return 1;
#else
  return 32;
#endif
}
// By a whole warp: `bytes`, a multiple of 16 like both addresses, perhaps none, become part of the
// running phase, and the warp arrives.
__device__ __forceinline__ void CopyByWarp(SharedPtr<std::byte> to, const void* from, int bytes,
                                           SharedPtr<uint64_t> barrier) {
  const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  if (lane != 0) return;
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(
          SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
  if (bytes == 0) return;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
#else
  for (int at = lane * 16; at < bytes; at += 32 * 16) {
    CopyAsync16(to + at, static_cast<const std::byte*>(from) + at);
  }
  ArriveBehindCopies(barrier);
#endif
}
// Phases count from 0: until the running one is none of the odd, or the even, ones.
__device__ __forceinline__ void WaitForPhase(SharedPtr<uint64_t> barrier, bool odd) {
#if __CUDA_ARCH__ >= 900
#define TANDEM_TRY_WAIT "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define TANDEM_TRY_WAIT "mbarrier.test_wait.parity.shared.b64"
#endif
  asm volatile("{ .reg .pred ended; TRY_AGAIN: " TANDEM_TRY_WAIT
               " ended, [%0], %1; @!ended bra TRY_AGAIN; }" ::"r"(SharedAddress(barrier)),
               "r"(static_cast<uint32_t>(odd))
               : "memory");
#undef TANDEM_TRY_WAIT
}

// Both rounded to the nearest bf16, ties to even, the first in the lower half.
__device__ __forceinline__ uint32_t PackBf16(float first, float second) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

// Denormals are numbers, whatever nvcc is told.
__device__ __forceinline__ float MultiplyUnflushed(float a, float b) {
  float product;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return product;
}

// The upper halves of two floats, numbers of bf16 if nothing is behind them, the first in the lower
// half.
__device__ __forceinline__ uint32_t UpperHalves(float first, float second) {
  return __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x7632);
}

// Two numbers of bf16, each times 2^120. Denormals are numbers, whatever nvcc is told for floats.
__device__ __forceinline__ uint32_t RaiseBf16Pair(uint32_t pair) {
  uint32_t raised;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(raised)
      : "r"(pair), "r"(0x7B807B80u), "r"(0x80008000u));  // 2^120, and −0 changes nothing.
  return raised;
}

// A number of half precision, exact.
__device__ __forceinline__ float HalfToFloat(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// Four matrices of 8 rows of 16 bytes (ldmatrix.x4): lane l gives the address of row l % 8 of
// matrix l / 8, and has of each matrix, row l / 4, word l % 4.
__device__ __forceinline__ void LoadMatrices(uint32_t (&to)[4], SharedPtr<std::byte> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// D += A · B of 16×16 and 16×8 numbers of bf16, summed in f32 (mma.m16n8k16, row by column).
__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
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

// Until all launches before have ended, and what they wrote can be read.
__device__ __forceinline__ void WaitForLaunchBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void LetNextLaunchBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// What each kernel begins with, but one that has something to do that no launch before it touches.
__device__ __forceinline__ void BeginLaunch() {
  LetNextLaunchBegin();
  WaitForLaunchBefore();
}

// Whether kernels wait for the launch before. A GPU that can overlap launches may run code that was
// compiled for an older one, and again by its driver, which does not. Any kernel tells for all:
// they are compiled for the same.
inline bool CompiledToOverlap(const void* any_kernel) {
  static const bool compiled = [any_kernel] {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, any_kernel) == cudaSuccess &&
           attributes.ptxVersion >= 90;
  }();
  return compiled;
}

// Lets a kernel have so much shared memory. That is asked for once: it takes longer than a launch.
inline cudaError_t RaiseSharedMemory(const void* kernel, size_t bytes) {
  constexpr size_t kWithoutAsking = 48 * 1024;
  if (bytes <= kWithoutAsking) return cudaSuccess;
  static thread_local std::unordered_map<const void*, size_t> raised;
  size_t& most = raised[kernel];
  if (bytes <= most) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}

// Enqueues `kernel`(args) with so many blocks.
template <typename Args>
cudaError_t Launch(void (*kernel)(Args), const LaunchShape& shape, cudaStream_t stream,
                   const Args& args) {
  if (shape.blocks == 0) return cudaSuccess;
  const auto* const code = reinterpret_cast<const void*>(kernel);
  const cudaError_t raised = RaiseSharedMemory(code, shape.shared_bytes);
  if (raised != cudaSuccess) return raised;
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = CompiledToOverlap(code) ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_SIMT_NVCC_H_
