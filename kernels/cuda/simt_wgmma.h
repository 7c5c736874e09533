// Products of four warps for nvcc (wgmma), which sm_90a alone has. emulated/simt.h has the same
// names, and what they mean.

#ifndef TANDEM_KERNELS_CUDA_SIMT_WGMMA_H_
#define TANDEM_KERNELS_CUDA_SIMT_WGMMA_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace tandem {

// Kernels have no code where it is false.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ __forceinline__ constexpr bool HasWarpgroupProducts() { return true; }
#else
__device__ __forceinline__ constexpr bool HasWarpgroupProducts() { return false; }
#endif

// By all of a warpgroup: its threads have so many registers from here on (setmaxnreg), fewer than
// the block began with, or more, which are waited for until other warpgroups have fewer.
template <int kRegisters>
__device__ __forceinline__ void LowerRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void RaiseRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// What this thread has written to shared memory so far, and what it has copied and waited for, may
// be read by products; for those of other threads a barrier is behind this.
__device__ __forceinline__ void FenceAsyncReads() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Numbers in registers are what they are here: nothing that makes or reads them is moved over this.
__device__ __forceinline__ void Settle(float* numbers, int count) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(numbers[i])::"memory");
}
__device__ __forceinline__ void Settle(uint32_t* words, int count) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(words[i])::"memory");
}
__device__ __forceinline__ void Settle(int32_t* numbers, int count) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(numbers[i])::"memory");
}

// What registers have is what products behind this read.
__device__ __forceinline__ void FenceProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// D = A · B, or += , of 64 rows of sixteen numbers of bf16 by so many columns, summed in f32, some
// time before the wait that covers it. Each warp has sixteen rows of A and D, as with MmaBf16: of D
// four numbers for each eight columns. Until the wait nobody may touch the registers or B.
template <int kColumns>
__device__ void WarpgroupMma(float* d, const uint32_t (&a)[4], uint64_t b, bool adds);

// Registers of D as the instruction has them, sixteen at a time, and the operands that they are.
#define TANDEM_D0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TANDEM_D1 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TANDEM_D2 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TANDEM_D3 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TANDEM_D4 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TANDEM_D5 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TANDEM_D6 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TANDEM_D7                                                                                \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define TANDEM_FOUR(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define TANDEM_SIXTEEN(c, i) \
  TANDEM_FOUR(c, i), TANDEM_FOUR(c, i + 4), TANDEM_FOUR(c, i + 8), TANDEM_FOUR(c, i + 12)
#define TANDEM_SIXTY_FOUR(c, i)                                               \
  TANDEM_SIXTEEN(c, i), TANDEM_SIXTEEN(c, i + 16), TANDEM_SIXTEEN(c, i + 32), \
      TANDEM_SIXTEEN(c, i + 48)
// `rest`: what the instruction says of its numbers behind `adds`.
#define TANDEM_PRODUCT(kind, numbers_of_d, of_a, of_b, of_adds, rest, ...)                        \
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " of_adds                                    \
               ", 0; wgmma.mma_async.sync.aligned." kind " {" numbers_of_d "}, {" of_a "}, " of_b \
               ", adds" rest "; }"                                                                \
               : __VA_ARGS__                                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)))

template <>
__device__ __forceinline__ void WarpgroupMma<64>(float* d, const uint32_t (&a)[4], uint64_t b,
                                                 bool adds) {
  TANDEM_PRODUCT("m64n64k16.f32.bf16.bf16", TANDEM_D0 TANDEM_D1, "%32, %33, %34, %35", "%36", "%37",
                 ", 1, 1, 0", TANDEM_SIXTEEN("+f", 0), TANDEM_SIXTEEN("+f", 16));
}
template <>
__device__ __forceinline__ void WarpgroupMma<96>(float* d, const uint32_t (&a)[4], uint64_t b,
                                                 bool adds) {
  TANDEM_PRODUCT("m64n96k16.f32.bf16.bf16", TANDEM_D0 TANDEM_D1 TANDEM_D2, "%48, %49, %50, %51",
                 "%52", "%53", ", 1, 1, 0", TANDEM_SIXTEEN("+f", 0), TANDEM_SIXTEEN("+f", 16),
                 TANDEM_SIXTEEN("+f", 32));
}
template <>
__device__ __forceinline__ void WarpgroupMma<128>(float* d, const uint32_t (&a)[4], uint64_t b,
                                                  bool adds) {
  TANDEM_PRODUCT("m64n128k16.f32.bf16.bf16", TANDEM_D0 TANDEM_D1 TANDEM_D2 TANDEM_D3,
                 "%64, %65, %66, %67", "%68", "%69", ", 1, 1, 0", TANDEM_SIXTY_FOUR("+f", 0));
}
template <>
__device__ __forceinline__ void WarpgroupMma<256>(float* d, const uint32_t (&a)[4], uint64_t b,
                                                  bool adds) {
  TANDEM_PRODUCT("m64n256k16.f32.bf16.bf16",
                 TANDEM_D0 TANDEM_D1 TANDEM_D2 TANDEM_D3 TANDEM_D4 TANDEM_D5 TANDEM_D6 TANDEM_D7,
                 "%128, %129, %130, %131", "%132", "%133", ", 1, 1, 0", TANDEM_SIXTY_FOUR("+f", 0),
                 TANDEM_SIXTY_FOUR("+f", 64));
}

// The same of 32 numbers of 8 bits in the place of sixteen of bf16, summed in 32 bits; each warp
// has its parts as with MmaInt8.
template <int kColumns>
__device__ void WarpgroupMmaInt8(int32_t* d, const uint32_t (&a)[4], uint64_t b, bool adds);

template <>
__device__ __forceinline__ void WarpgroupMmaInt8<256>(int32_t* d, const uint32_t (&a)[4],
                                                      uint64_t b, bool adds) {
  TANDEM_PRODUCT("m64n256k32.s32.s8.s8",
                 TANDEM_D0 TANDEM_D1 TANDEM_D2 TANDEM_D3 TANDEM_D4 TANDEM_D5 TANDEM_D6 TANDEM_D7,
                 "%128, %129, %130, %131", "%132", "%133", "", TANDEM_SIXTY_FOUR("+r", 0),
                 TANDEM_SIXTY_FOUR("+r", 64));
}
#undef TANDEM_D0
#undef TANDEM_D1
#undef TANDEM_D2
#undef TANDEM_D3
#undef TANDEM_D4
#undef TANDEM_D5
#undef TANDEM_D6
#undef TANDEM_D7
#undef TANDEM_FOUR
#undef TANDEM_SIXTEEN
#undef TANDEM_SIXTY_FOUR
#undef TANDEM_PRODUCT

// The thread's products since the last commit become a group.
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All groups but the latest `kPending` are done. Settle() what they have summed.
template <int kPending>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_SIMT_WGMMA_H_
