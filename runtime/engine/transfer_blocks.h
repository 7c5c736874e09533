// The blocks of a worker as a transfer sees them: EngineBlocks for the engine, a pool alone for the
// transfer explorer.

#ifndef TANDEM_RUNTIME_ENGINE_TRANSFER_BLOCKS_H_
#define TANDEM_RUNTIME_ENGINE_TRANSFER_BLOCKS_H_

#include <cstdint>

#include "runtime/kv_cache/block_pool.h"

namespace tandem {

class TransferBlocks {
 public:
  virtual ~TransferBlocks() = default;

  // A transport may read or write the block until Unpin, whoever lets go of it in between.
  virtual void Pin(BlockId block) = 0;
  virtual void Unpin(BlockId block) = 0;

  // The CRC-32C of a block whose content is final; computed once in the block's life.
  virtual uint32_t Checksum(BlockId block) = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_TRANSFER_BLOCKS_H_
