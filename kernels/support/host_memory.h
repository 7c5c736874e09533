// Memory of backends that compute on the host: 64-byte aligned, zero-filled. Large pieces come
// from the kernel untouched, so a pool costs only the pages that are used.

#ifndef TANDEM_KERNELS_SUPPORT_HOST_MEMORY_H_
#define TANDEM_KERNELS_SUPPORT_HOST_MEMORY_H_

#include <cstddef>

#include "absl/status/statusor.h"

namespace tandem {

inline constexpr size_t kHostAlignment = 64;

// ResourceExhausted if the memory cannot be had. Any thread.
absl::StatusOr<std::byte*> AllocateHostMemory(size_t size_bytes);
// `size_bytes` as it was allocated.
void FreeHostMemory(std::byte* data, size_t size_bytes);

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_HOST_MEMORY_H_
