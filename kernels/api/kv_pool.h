// The pool of KV blocks as kernels see it.
//
// Block-first: [block][layer][K,V][kv head][tile], all layers of a block adjacent, so a block is
// one contiguous piece of memory for a transfer. A tile holds block_tokens × head_dim numbers of K
// or of V in an order of the backend's own (its KvTileFormat); nothing outside the backend reads
// inside a tile. Blocks of one format id can be exchanged between workers.

#ifndef TANDEM_KERNELS_API_KV_POOL_H_
#define TANDEM_KERNELS_API_KV_POOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

#include "kernels/api/device_ptr.h"
#include "kernels/api/dtype.h"
#include "runtime/base/memory_kind.h"

namespace tandem {

// Pool blocks are a multiple of this many tokens; tiles are built of sub-tiles of as many.
inline constexpr int kKvSubTileTokens = 16;

struct KvTileShape {
  int block_tokens;  // a multiple of 16
  int head_dim;      // even, 2 to 256
  KvType type;       // of what is stored, whatever attention computes in
};

struct KvTileFormat {
  std::string id;     // enters kv_class: names the order within a tile, not the shape
  size_t tile_bytes;  // of one tile of K, or of V, with the scales of its type if it has some
};

// One layer of the pool. G KV heads.
template <template <typename> class P>
struct KvLayerViewOf {
  P<std::byte> base;          // of block 0; 64-byte aligned
  size_t block_stride_bytes;  // from one block to the next; a multiple of 64
  size_t layer_offset_bytes;  // of this layer within a block; a multiple of 64
  size_t tile_bytes;          // KvTileFormat::tile_bytes
  int num_kv_heads;           // G
  KvTileShape shape;
  static constexpr auto Pointers(auto& self) { return std::tie(self.base); }
};
using KvLayerView = KvLayerViewOf<DevicePtr>;

// Memory for the pool from outside, for Backend::AllocatePool: 64-byte aligned, alive as long as
// the pool; of the host, such as a transport's, or of the backend's device. Null base: the backend
// allocates its own.
struct KvPoolMemory {
  void* base = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
};

// Bytes of one layer in a block: G tiles of K, then G tiles of V, rounded up to 64.
constexpr size_t KvLayerBytes(size_t tile_bytes, int num_kv_heads) {
  const size_t bytes = 2 * static_cast<size_t>(num_kv_heads) * tile_bytes;
  return (bytes + 63) / 64 * 64;
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_KV_POOL_H_
