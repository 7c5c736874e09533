// kernels/cuda/simt.h without nvcc: the names that kernels use, each with the meaning that CUDA and
// PTX give it (simt_nvcc.h has the same), for one block at a time (block.h).

#ifndef TANDEM_KERNELS_CUDA_EMULATED_SIMT_H_
#define TANDEM_KERNELS_CUDA_EMULATED_SIMT_H_

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "kernels/cuda/emulated/block.h"

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define TANDEM_THREADS(...)

namespace tandem {

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
constexpr uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }

// ---- shared memory ----

// One number in shared memory: reading and writing it is seen.
template <typename T>
class SharedRef {
 public:
  explicit SharedRef(size_t offset) : offset_(offset) {}
  operator T() const {  // NOLINT: as references convert.
    T value;
    emulated::ReadShared(offset_, &value, sizeof(value));
    return value;
  }
  const SharedRef& operator=(T value) const {
    emulated::WriteShared(offset_, &value, sizeof(value));
    return *this;
  }
  const SharedRef& operator=(const SharedRef& other) const { return *this = static_cast<T>(other); }

 private:
  const size_t offset_;
};

template <typename T>
class SharedPtr {
 public:
  explicit SharedPtr(size_t offset) : offset_(offset) {}
  SharedRef<T> operator[](int64_t index) const {
    return SharedRef<T>(offset_ + static_cast<size_t>(index) * sizeof(T));
  }
  SharedPtr operator+(int64_t elements) const {
    return SharedPtr(offset_ + static_cast<size_t>(elements) * sizeof(T));
  }
  size_t offset() const { return offset_; }

 private:
  size_t offset_;
};

template <typename To, typename From>
SharedPtr<To> SharedCast(SharedPtr<From> from) {
  return SharedPtr<To>(from.offset());
}

inline SharedPtr<std::byte> SharedMemory() { return SharedPtr<std::byte>(0); }

// ---- threads that wait for each other ----

inline void __syncthreads(const std::source_location& at = std::source_location::current()) {
  emulated::Barrier(at);
}
inline void __syncwarp(const std::source_location& at = std::source_location::current()) {
  emulated::WarpBarrier(at);
}

template <typename T>
T ExchangedWith(T value, int lane) {
  T all[emulated::kWarpThreads];
  emulated::ExchangeInWarp(&value, sizeof(value), all);
  return all[lane];
}
inline int LaneOfThread() { return static_cast<int>(threadIdx.x) % emulated::kWarpThreads; }

// The whole warp takes part in each.
template <typename T>
T __shfl_sync(uint32_t /*mask*/, T value, int lane) {
  return ExchangedWith(value, lane % emulated::kWarpThreads);
}
template <typename T>
T __shfl_xor_sync(uint32_t /*mask*/, T value, int lanes) {
  return ExchangedWith(value, LaneOfThread() ^ lanes);
}
// Lanes without such a neighbour keep what is theirs.
template <typename T>
T __shfl_down_sync(uint32_t /*mask*/, T value, int lanes) {
  const int from = LaneOfThread() + lanes;
  return ExchangedWith(value, from < emulated::kWarpThreads ? from : LaneOfThread());
}

// ---- asynchronous copies ----

inline void CopyAsync16(SharedPtr<std::byte> to, const void* from, bool valid = true) {
  emulated::CopyAsync(to.offset(), valid ? from : nullptr, 16);
}
inline void CommitCopies() { emulated::CommitCopies(); }
template <int kPending>
void WaitForCopies(const std::source_location& at = std::source_location::current()) {
  emulated::WaitForCopies(kPending, at);
}

// ---- products ----

// mma.m16n8k32.row.col.s32.s8.s8.s32: lane l has of A rows l / 4 and l / 4 + 8, of B column l / 4,
// of both the inputs 4 · (l % 4) and 16 more; of D columns 2 · (l % 4) and the next.
inline void MmaInt8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Parts {
    uint32_t a[4];
    uint32_t b[2];
  };
  const Parts mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  Parts all[emulated::kWarpThreads];
  emulated::ExchangeInWarp(&mine, sizeof(mine), all);
  const auto byte_of = [](uint32_t word, int index) {
    return static_cast<int32_t>(static_cast<int8_t>(word >> (8 * index)));
  };
  const int lane = LaneOfThread();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8;
    const int column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 32; ++k) {
      const uint32_t word_a = all[row % 8 * 4 + k % 16 / 4].a[row / 8 + k / 16 * 2];
      const uint32_t word_b = all[column * 4 + k % 16 / 4].b[k / 16];
      d[i] += byte_of(word_a, k % 4) * byte_of(word_b, k % 4);
    }
  }
}

// ---- launches ----

template <typename Args>
cudaError_t Launch(void (*kernel)(Args), const LaunchShape& shape, cudaStream_t stream,
                   const Args& args) {
  if (shape.blocks == 0) return cudaSuccess;
  const char* const name = __PRETTY_FUNCTION__;
  return emulated::Enqueue(stream, [=] {
    return emulated::RunBlocks(name, shape.blocks, shape.threads, shape.shared_bytes,
                               [&] { kernel(args); });
  });
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_EMULATED_SIMT_H_
