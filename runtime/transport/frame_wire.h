// FrameHeader as bytes, and the frames that measure a fresh link.

#ifndef TANDEM_RUNTIME_TRANSPORT_FRAME_WIRE_H_
#define TANDEM_RUNTIME_TRANSPORT_FRAME_WIRE_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/protocol/peer_messages.h"

namespace tandem {

static_assert(std::endian::native == std::endian::little, "wire formats are little-endian");

inline constexpr size_t kFrameHeaderBytes = 24;

inline void PackFrameHeader(const FrameHeader& header, void* out) {
  const uint32_t words[] = {header.reservation.index, header.reservation.generation, header.ordinal,
                            header.length_bytes,      PackShard(header.shard),       header.crc32c};
  static_assert(sizeof(words) == kFrameHeaderBytes);
  std::memcpy(out, words, sizeof(words));
}

inline FrameHeader UnpackFrameHeader(const void* bytes) {
  uint32_t words[kFrameHeaderBytes / sizeof(uint32_t)];
  std::memcpy(words, bytes, sizeof(words));
  return {.reservation = {.index = words[0], .generation = words[1]},
          .ordinal = words[2],
          .length_bytes = words[3],
          .shard = UnpackShard(words[4]),
          .crc32c = words[5]};
}

// A probe names generation 0, which no reservation has, and says which of how many it is. Its
// payload is checksummed like any other and dropped.
inline bool IsProbe(const FrameHeader& header) { return header.reservation.generation == 0; }

inline FrameHeader ProbeHeader(int32_t index, int32_t count, int64_t block_bytes) {
  return {.reservation = {.index = static_cast<uint32_t>(count), .generation = 0},
          .ordinal = static_cast<uint32_t>(index),
          .length_bytes = static_cast<uint32_t>(block_bytes)};
}

// A few megabytes: long enough to measure, short enough not to be felt.
inline int32_t NumProbes(int64_t block_bytes) {
  return static_cast<int32_t>(std::clamp<int64_t>((int64_t{4} << 20) / block_bytes, 4, 64));
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_FRAME_WIRE_H_
