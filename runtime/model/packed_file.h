// How a packed image lies on disk: a header, the payload, and the identity of the checkpoint that
// it was packed from.

#ifndef TANDEM_RUNTIME_MODEL_PACKED_FILE_H_
#define TANDEM_RUNTIME_MODEL_PACKED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/sha256.h"

namespace tandem {

inline constexpr size_t kPackedHeaderBytes = 4096;  // Keeps the payload page-aligned.
inline constexpr char kPackedSuffix[] = ".packed";
inline constexpr char kTemporarySuffix[] = ".tmp";  // Behind the other, until it is written.
inline constexpr char kLockSuffix[] = ".lock";

struct PackedHeader {
  char magic[8];
  uint32_t version;
  uint32_t payload_checksum;
  uint64_t payload_bytes;
  uint64_t identity_bytes;
  uint8_t key[32];
  uint8_t digest[32];
  uint32_t header_checksum;  // The checksum of everything above.
  uint32_t unused;

  static PackedHeader Make(const Sha256Digest& key, const Sha256Digest& digest,
                           uint64_t payload_bytes, uint64_t identity_bytes,
                           uint32_t payload_checksum);
  // Nothing if the file does not begin with a header of this version that agrees with its size.
  static std::optional<PackedHeader> Read(int fd);
};
static_assert(sizeof(PackedHeader) == 104 && sizeof(PackedHeader) <= kPackedHeaderBytes);

// Removes from the open cache folder what no start will use again: images of the same files as
// `identity` (WeightSource::Identity) in a state that they are no longer in, images that nobody has
// opened for 30 days, and what dead processes left half-written. Leaves alone what a process is
// writing or has mapped, and `keep`.
void RemoveStaleImages(int cache_folder, const std::string& identity, const std::string& keep);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_PACKED_FILE_H_
