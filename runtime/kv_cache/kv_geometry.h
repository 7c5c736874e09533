// The sizes of a worker's KV pool.

#ifndef TANDEM_RUNTIME_KV_CACHE_KV_GEOMETRY_H_
#define TANDEM_RUNTIME_KV_CACHE_KV_GEOMETRY_H_

#include <cstdint>

namespace tandem {

struct KvGeometry {
  int32_t block_tokens = 16;  // A multiple of kHashTokens.
  int32_t num_blocks = 0;
  int64_t block_bytes = 0;  // All layers and heads of block_tokens tokens; one frame's payload.

  int64_t pool_bytes() const { return block_bytes * num_blocks; }
  int64_t pool_tokens() const { return int64_t{block_tokens} * num_blocks; }
  bool operator==(const KvGeometry&) const = default;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_KV_CACHE_KV_GEOMETRY_H_
