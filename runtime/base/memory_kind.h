// Whose memory an address is of.

#ifndef TANDEM_RUNTIME_BASE_MEMORY_KIND_H_
#define TANDEM_RUNTIME_BASE_MEMORY_KIND_H_

#include <cstdint>

namespace tandem {

// Who can read and write an address.
enum class MemoryKind : uint8_t {
  kHost,    // The host, like any of its memory.
  kDevice,  // A device, and no host.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_MEMORY_KIND_H_
