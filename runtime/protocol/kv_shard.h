// Which part of every block a worker's pool holds, where several processes hold one model together.
// Blocks pass between equal shards alone. Today each worker holds all of a model.

#ifndef TANDEM_RUNTIME_PROTOCOL_KV_SHARD_H_
#define TANDEM_RUNTIME_PROTOCOL_KV_SHARD_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace tandem {

struct KvShard {
  uint16_t index = 0;  // Less than count.
  uint16_t count = 1;
  bool operator==(const KvShard&) const = default;

  std::string ToString() const { return absl::StrFormat("shard %d of %d", index, count); }
};

// As one word of a frame's header.
inline uint32_t PackShard(KvShard shard) { return shard.index | uint32_t{shard.count} << 16; }
inline KvShard UnpackShard(uint32_t word) {
  return {.index = static_cast<uint16_t>(word), .count = static_cast<uint16_t>(word >> 16)};
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_KV_SHARD_H_
