// Makes every array of a test pinned memory, which a GPU reads and writes where it is: the kernel
// tests hand arrays of the host to operations. Without a GPU it is malloc's.

#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

namespace {

constexpr size_t kArenaBytes = size_t{1} << 30;
constexpr size_t kAlignment = 256;
constexpr size_t kLeastBytes = 2 * kAlignment;  // the first half of a piece holds its size

struct Arena {
  std::mutex mutex;
  std::byte* begin = nullptr;
  size_t used = 0;
  std::array<void*, 64> free = {};  // of pieces of 2^i bytes, each holding the next

  bool Has(const void* data) const {
    const auto* at = static_cast<const std::byte*>(data);
    return begin != nullptr && at >= begin && at < begin + kArenaBytes;
  }
};

Arena& TheArena() {
  static Arena* const arena = new (std::malloc(sizeof(Arena))) Arena;
  return *arena;
}

void* Allocate(size_t size) {
  Arena& arena = TheArena();
  const std::scoped_lock lock(arena.mutex);
  const size_t bytes = std::bit_ceil(size + kAlignment);
  const int kind = std::countr_zero(bytes < kLeastBytes ? kLeastBytes : bytes);
  if (void* const data = arena.free[kind]; data != nullptr) {
    arena.free[kind] = *static_cast<void**>(data);
    return data;
  }
  const size_t piece = size_t{1} << kind;
  if (arena.begin != nullptr && arena.used + piece <= kArenaBytes) {
    std::byte* const data = arena.begin + arena.used + kAlignment;
    arena.used += piece;
    *reinterpret_cast<int*>(data - kAlignment) = kind;
    return data;
  }
  return std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
}

void Free(void* data) {
  Arena& arena = TheArena();
  const std::scoped_lock lock(arena.mutex);
  if (!arena.Has(data)) return std::free(data);
  const int kind = *reinterpret_cast<int*>(static_cast<std::byte*>(data) - kAlignment);
  *static_cast<void**>(data) = arena.free[kind];
  arena.free[kind] = data;
}

const bool kPinned = [] {
  void* data = nullptr;
  if (cudaMallocHost(&data, kArenaBytes) != cudaSuccess) return false;
  TheArena().begin = static_cast<std::byte*>(data);
  return true;
}();

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void* operator new(size_t size, std::align_val_t) { return Allocate(size); }
void* operator new[](size_t size, std::align_val_t) { return Allocate(size); }
void operator delete(void* data) noexcept { Free(data); }
void operator delete[](void* data) noexcept { Free(data); }
void operator delete(void* data, size_t) noexcept { Free(data); }
void operator delete[](void* data, size_t) noexcept { Free(data); }
void operator delete(void* data, std::align_val_t) noexcept { Free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { Free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { Free(data); }
void operator delete[](void* data, size_t, std::align_val_t) noexcept { Free(data); }
