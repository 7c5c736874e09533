// What kernels are written in: CUDA C++, as far as both nvcc and, for machines without a GPU, the
// host's compiler understand it (kernels/cuda/emulated, as HIP-CPU does it).
//
// A kernel is a plain `__global__ void` function that takes one structure of arguments by value. It
// may use threadIdx, blockIdx, blockDim and gridDim, __syncthreads, the warp's shuffles and votes,
// and what is declared below. Memory that the threads of a block share is dynamic, comes from
// SharedMemory() and is reached through SharedPtr alone, so that the emulation sees every access.
//
// One thing differs from CUDA's own: a launch is a call of Launch(), as `<<< >>>` is no C++.
//
// Launches overlap (programmatic dependent launch): a launch may begin while the one before it, and
// all before that, still run. So a thread waits, by WaitForLaunchBefore(), before it writes
// anything and before it reads what another launch may write. Before that it may read what the host
// has uploaded and no launch writes: weights, and what a step is about. In every block some thread
// waits, as a launch that ended before the one before it would let the next one go on too early.

#ifndef TANDEM_KERNELS_CUDA_SIMT_H_
#define TANDEM_KERNELS_CUDA_SIMT_H_

#include <cstddef>
#include <cstdint>

namespace tandem {

// What a launch asks for.
struct LaunchShape {
  int64_t blocks;  // may be 0: nothing is launched
  int threads;     // of a block: a multiple of 32, at most 1,024
  size_t shared_bytes = 0;
  // As nvcc is told for the kernel's file (CMakeLists.txt); only the emulation reads it.
  bool keeps_denormals = false;
};

}  // namespace tandem

#if defined(__CUDACC__)
#include "kernels/cuda/simt_nvcc.h"
#else
#include "kernels/cuda/emulated/simt.h"
#endif

namespace tandem {

__device__ __forceinline__ int Least(int a, int b) { return a < b ? a : b; }

// Describes a matrix of a product of four warps (PTX ISA, "matrix descriptor"): its row n has
// sixteen numbers of bf16 in a row, or 32 of 8 bits; those of eight rows are 128 bytes apart, eight
// rows 1,024, and bits 4 to 6 of an address are turned over by bits 7 to 9 (the swizzle of 128
// bytes). The first row's first number is up to 96 bytes behind an address that is 1,024-byte
// aligned.
__device__ __forceinline__ uint64_t SwizzledMatrix(SharedPtr<std::byte> from) {
  constexpr uint64_t kUnusedLeading = 1;
  constexpr uint64_t kStride = 1024 / 16;  // between eight rows
  constexpr uint64_t kSwizzle128 = 1;
  return (SharedAddress(from) / 16 & 0x3FFF) | kUnusedLeading << 16 | kStride << 32 |
         kSwizzle128 << 62;
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_SIMT_H_
