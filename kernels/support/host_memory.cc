#include "kernels/support/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"

namespace tandem {
namespace {

constexpr size_t kMapFromBytes = 256 * 1024;

absl::Status NoMemory(size_t size_bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("no memory for a buffer of %d bytes: %s", size_bytes, std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::byte*> AllocateHostMemory(size_t size_bytes) {
  if (size_bytes >= kMapFromBytes) {
    void* data =
        mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return NoMemory(size_bytes, errno);
    // Blocks of a KV pool are read in any order: with pages of 4 KiB the page walks cost as much as
    // the reads. A wish, so errors are none of ours.
    madvise(data, size_bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(data);
  }
  void* data = nullptr;
  const size_t rounded = (size_bytes / kHostAlignment + 1) * kHostAlignment;
  if (const int error = posix_memalign(&data, kHostAlignment, rounded); error != 0) {
    return NoMemory(size_bytes, error);
  }
  std::memset(data, 0, rounded);
  return static_cast<std::byte*>(data);
}

void FreeHostMemory(std::byte* data, size_t size_bytes) {
  if (data == nullptr) return;
  if (size_bytes >= kMapFromBytes) {
    munmap(data, size_bytes);
  } else {
    std::free(data);
  }
}

}  // namespace tandem
