// The blocks of a worker as a transfer sees them: EngineBlocks for the engine, a pool alone for the
// transfer explorer.

#ifndef TANDEM_RUNTIME_ENGINE_TRANSFER_BLOCKS_H_
#define TANDEM_RUNTIME_ENGINE_TRANSFER_BLOCKS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "runtime/kv_cache/block_pool.h"

namespace tandem {

class TransferBlocks {
 public:
  virtual ~TransferBlocks() = default;

  // A transport may read or write the block until Unpin, whoever lets go of it in between.
  virtual void Pin(BlockId block) = 0;
  virtual void Unpin(BlockId block) = 0;

  // crc32c[i]: the CRC-32C of blocks[i], whose content is final; computed once in a block's life.
  // Not OK: the device failed, and nothing is told.
  virtual absl::Status Checksums(std::span<const BlockId> blocks, uint32_t* crc32c) = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_TRANSFER_BLOCKS_H_
