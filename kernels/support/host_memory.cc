#include "kernels/support/host_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "runtime/base/huge_pages.h"

namespace tandem {
namespace {

constexpr size_t kMapFromBytes = 256 * 1024;

}  // namespace

absl::StatusOr<std::byte*> AllocateHostMemory(size_t size_bytes) {
  if (size_bytes >= kMapFromBytes) return MapHugePages(size_bytes, "a buffer");
  void* data = nullptr;
  const size_t rounded = (size_bytes / kHostAlignment + 1) * kHostAlignment;
  if (const int error = posix_memalign(&data, kHostAlignment, rounded); error != 0) {
    return absl::ResourceExhaustedError(absl::StrFormat("no memory for a buffer of %d bytes: %s",
                                                        size_bytes, std::strerror(error)));
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
