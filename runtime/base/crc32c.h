// CRC-32C (Castagnoli), as in iSCSI and RFC 3720: the checksum of every KV block.

#ifndef TANDEM_RUNTIME_BASE_CRC32C_H_
#define TANDEM_RUNTIME_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace tandem {

// Crc32c(b, nb, Crc32c(a, na)) is the checksum of a followed by b. Any thread.
uint32_t Crc32c(const void* data, size_t size_bytes, uint32_t crc = 0);

// Copies and checksums in one pass.
uint32_t Crc32cCopy(void* destination, const void* source, size_t size_bytes, uint32_t crc = 0);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_CRC32C_H_
