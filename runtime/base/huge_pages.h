// Memory for what is large and read in any order: with pages of 4 KiB page walks take a tenth of a
// step of packed weights, and as long as the reads of a KV pool's blocks.

#ifndef TANDEM_RUNTIME_BASE_HUGE_PAGES_H_
#define TANDEM_RUNTIME_BASE_HUGE_PAGES_H_

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"

namespace tandem {

// Zero-filled, with no page made yet; the caller unmaps it. ResourceExhausted, by the name of
// `what`, if there is not so much.
inline absl::StatusOr<std::byte*> MapHugePages(size_t size_bytes, const char* what) {
  void* const memory =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat("no memory for %s of %d bytes: %s", what,
                                                        size_bytes, std::strerror(errno)));
  }
  ::madvise(memory, size_bytes, MADV_HUGEPAGE);  // A wish, so errors are none of ours.
  return static_cast<std::byte*>(memory);
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_HUGE_PAGES_H_
