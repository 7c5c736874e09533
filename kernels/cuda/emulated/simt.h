// kernels/cuda/simt.h without nvcc: the names that kernels use, each with the meaning that CUDA and
// PTX give it (simt_nvcc.h has the same), for one block at a time (block.h).

#ifndef TANDEM_KERNELS_CUDA_EMULATED_SIMT_H_
#define TANDEM_KERNELS_CUDA_EMULATED_SIMT_H_

#include <cuda_runtime.h>
#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "kernels/api/dtype.h"
#include "kernels/api/half.h"
#include "kernels/cuda/emulated/block.h"
#include "kernels/cuda/emulated/tensor_core.h"
#include "kernels/cuda/emulated/warpgroup.h"

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define TANDEM_THREADS(...)

namespace tandem {

struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<uint64_t>(x)); }
inline uint32_t PackBf16(float first, float second) {
  return ToBfloat16(first).bits | static_cast<uint32_t>(ToBfloat16(second).bits) << 16;
}
// Whatever the host's thread does with denormals.
inline float MultiplyUnflushed(float a, float b) {
  constexpr unsigned kFlushes = 0x8040;  // Results, and operands.
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before & ~kFlushes);
  const volatile float left = a, right = b;  // Read between both.
  const volatile float product = left * right;
  _mm_setcsr(before);
  return product;
}
inline uint32_t UpperHalves(float first, float second) {
  return __float_as_uint(first) >> 16 | (__float_as_uint(second) & 0xFFFF0000u);
}
// In whole numbers, as the host may flush denormals.
inline uint32_t RaiseBf16Pair(uint32_t pair) {
  const auto raise = [](uint32_t bits) -> uint32_t {
    const uint32_t exponent = bits >> 7 & 0xFFu;
    const uint32_t sign = bits & 0x8000u;
    if (exponent == 0) {
      const float small = static_cast<float>(bits & 0x7Fu) * 0x1p-13f;  // Steps of 2^-133.
      return ToBfloat16(small).bits | sign;
    }
    if (exponent == 0xFF) return bits;
    return exponent + 120 < 0xFF ? bits + (120u << 7) : 0x7F80u | sign;
  };
  return raise(pair & 0xFFFFu) | raise(pair >> 16) << 16;
}
inline float HalfToFloat(uint16_t bits) { return ToFloat(Half{bits}); }

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
inline size_t SharedMemoryBytes() { return emulated::SharedBytes(); }

inline void AddShared(SharedPtr<uint64_t> to, uint64_t value) {
  emulated::AddToShared(to.offset(), value);
}
// One block runs at a time, and none of its threads is interrupted here.
inline void AddGlobal(uint64_t* to, uint64_t value) { *to += value; }

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
T __shfl_up_sync(uint32_t /*mask*/, T value, int lanes) {
  const int from = LaneOfThread() - lanes;
  return ExchangedWith(value, from >= 0 ? from : LaneOfThread());
}
template <typename T>
T __shfl_down_sync(uint32_t /*mask*/, T value, int lanes) {
  const int from = LaneOfThread() + lanes;
  return ExchangedWith(value, from < emulated::kWarpThreads ? from : LaneOfThread());
}

// ---- asynchronous copies ----

inline void CopyAsync16(SharedPtr<std::byte> to, const void* from, bool valid = true) {
  emulated::CopyAsync(to.offset(), valid ? from : nullptr, 16, 16);
}
inline void CopyAsync4(SharedPtr<std::byte> to, const void* from, int bytes) {
  emulated::CopyAsync(to.offset(), bytes > 0 ? from : nullptr, 4, static_cast<size_t>(bytes));
}
inline void CommitCopies() { emulated::CommitCopies(); }
template <int kPending>
void WaitForCopies(const std::source_location& at = std::source_location::current()) {
  emulated::WaitForCopies(kPending, at);
}

inline void InitPhases(SharedPtr<uint64_t> barrier, int arrivals) {
  emulated::InitPhases(barrier.offset(), arrivals);
}
inline void ArriveBehindCopies(SharedPtr<uint64_t> barrier,
                               const std::source_location& at = std::source_location::current()) {
  emulated::MoveCopiesToPhase(barrier.offset());
  emulated::ArriveAtPhase(barrier.offset(), at);
}
// From sm_90 on one lane copies for all.
inline int WarpCopyArrivals() { return emulated::TheGpu().major >= 9 ? 1 : emulated::kWarpThreads; }
inline void CopyByWarp(SharedPtr<std::byte> to, const void* from, int bytes,
                       SharedPtr<uint64_t> barrier,
                       const std::source_location& at = std::source_location::current()) {
  if (WarpCopyArrivals() > 1) {
    for (int piece = LaneOfThread() * 16; piece < bytes; piece += emulated::kWarpThreads * 16) {
      CopyAsync16(to + piece, static_cast<const std::byte*>(from) + piece);
    }
    ArriveBehindCopies(barrier, at);
    return;
  }
  if (LaneOfThread() != 0) return;
  if (bytes > 0) {
    emulated::CopyInPhase(to.offset(), from, static_cast<size_t>(bytes), barrier.offset());
  }
  emulated::ArriveAtPhase(barrier.offset(), at);
}
inline void Arrive(SharedPtr<uint64_t> barrier,
                   const std::source_location& at = std::source_location::current()) {
  emulated::ArriveAtPhase(barrier.offset(), at);
}
inline void WaitForPhase(SharedPtr<uint64_t> barrier, bool odd,
                         const std::source_location& at = std::source_location::current()) {
  emulated::WaitForPhase(barrier.offset(), odd, at);
}

// Launches run one after the other; what a thread touches before it has waited is watched.
inline void WaitForLaunchBefore(const std::source_location& at = std::source_location::current()) {
  emulated::WaitForLaunchBefore(at);
}
inline void LetNextLaunchBegin() {}
inline void BeginLaunch(const std::source_location& at = std::source_location::current()) {
  emulated::WaitForLaunchBefore(at);
}

// ---- products ----

// ldmatrix.x4: lane l gives the address of row l % 8 of matrix l / 8, and has of each matrix, row
// l / 4, word l % 4.
inline void LoadMatrices(uint32_t (&to)[4], SharedPtr<std::byte> row) {
  uint4 mine;
  emulated::ReadShared(row.offset(), &mine, sizeof(mine));
  uint4 all[emulated::kWarpThreads];
  emulated::ExchangeInWarp(&mine, sizeof(mine), all);
  const int lane = LaneOfThread();
  for (int i = 0; i < 4; ++i) {
    const uint4& words = all[i * 8 + lane / 4];
    const uint32_t of_row[4] = {words.x, words.y, words.z, words.w};
    to[i] = of_row[lane % 4];
  }
}

// What a warp's lanes hold of A and B.
struct MmaParts {
  uint32_t a[4];
  uint32_t b[2];
};
inline void ExchangeParts(const uint32_t (&a)[4], const uint32_t (&b)[2],
                          MmaParts (&all)[emulated::kWarpThreads]) {
  const MmaParts mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  emulated::ExchangeInWarp(&mine, sizeof(mine), all);
}

// mma.m16n8k32.row.col.s32.s8.s8.s32: lane l has of A rows l / 4 and l / 4 + 8, of B column l / 4,
// of both the inputs 4 · (l % 4) and 16 more; of D columns 2 · (l % 4) and the next.
inline void MmaInt8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaParts all[emulated::kWarpThreads];
  ExchangeParts(a, b, all);
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

// mma.m16n8k16.row.col.f32.bf16.bf16.f32: as above, with pairs of inputs 2 · (l % 4) and 8 more.
inline void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaParts all[emulated::kWarpThreads];
  ExchangeParts(a, b, all);
  const auto half_of = [](uint32_t word, int index) {
    return static_cast<uint16_t>(word >> (16 * index));
  };
  const int lane = LaneOfThread();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8;
    const int column = lane % 4 * 2 + i % 2;
    uint16_t of_a[16];
    uint16_t of_b[16];
    for (int k = 0; k < 16; ++k) {
      of_a[k] = half_of(all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k % 2);
      of_b[k] = half_of(all[column * 4 + k % 8 / 2].b[k / 8], k % 2);
    }
    d[i] = emulated::TensorCoreSum(d[i], of_a, of_b);
  }
}

// Products of warpgroups (warpgroup.h): wgmma.mma_async.m64nNk16.f32.bf16.bf16 and
// m64nNk32.s32.s8.s8, A in registers.
inline constexpr bool HasWarpgroupProducts() { return true; }

// A thread has as many registers as it likes.
template <int kRegisters>
void LowerRegisters() {}
template <int kRegisters>
void RaiseRegisters() {}

// As instructions take it.
inline uint32_t SharedAddress(SharedPtr<std::byte> shared) {
  return static_cast<uint32_t>(shared.offset());
}

inline void FenceAsyncReads(const std::source_location& at = std::source_location::current()) {
  emulated::FenceAsyncReads(at);
}
inline void Settle(float*, int) {}
inline void Settle(uint32_t*, int) {}
inline void Settle(int32_t*, int) {}
inline void FenceProducts(const std::source_location& at = std::source_location::current()) {
  emulated::FenceProducts(at);
}
template <int kColumns>
void WarpgroupMma(float* d, const uint32_t (&a)[4], uint64_t b, bool adds) {
  emulated::BeginProduct({.type = emulated::ProductType::kBf16,
                          .d = d,
                          .columns = kColumns,
                          .a = a,
                          .matrix = b,
                          .adds = adds});
}
template <int kColumns>
void WarpgroupMmaInt8(int32_t* d, const uint32_t (&a)[4], uint64_t b, bool adds) {
  emulated::BeginProduct({.type = emulated::ProductType::kInt8,
                          .d = d,
                          .columns = kColumns,
                          .a = a,
                          .matrix = b,
                          .adds = adds});
}
inline void CommitProducts(const std::source_location& at = std::source_location::current()) {
  emulated::CommitProducts(at);
}
template <int kPending>
void WaitForProducts(const std::source_location& at = std::source_location::current()) {
  emulated::WaitForProducts(kPending, at);
}

// ---- launches ----

template <typename Args>
cudaError_t Launch(void (*kernel)(Args), const LaunchShape& shape, cudaStream_t stream,
                   const Args& args) {
  if (shape.blocks == 0) return cudaSuccess;
  if (shape.shared_bytes > emulated::TheGpu().max_shared_bytes) return cudaErrorInvalidValue;
  const char* const name = __PRETTY_FUNCTION__;
  return emulated::Enqueue(stream, [=] {
    return emulated::RunBlocks(
        name, shape.blocks, shape.threads, shape.shared_bytes, [&] { kernel(args); },
        {.keeps_denormals = shape.keeps_denormals, .follows_launches = true});
  });
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_EMULATED_SIMT_H_
