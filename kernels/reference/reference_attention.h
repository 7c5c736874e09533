// Rotary embedding, KV writes and attention in plain scalar code (kernels/api/attention.h).
// Tiles are [token][D].

#ifndef TANDEM_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_
#define TANDEM_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_

#include "kernels/support/host_args.h"

namespace tandem {

KvTileFormat ReferenceTileFormat(const KvTileShape& shape);
void ReferenceRotaryTable(const HostRotaryTableArgs& args);
void ReferenceRotaryKvWrite(const HostRotaryKvWriteArgs& args);
void ReferenceDecodeAttention(const HostDecodeAttentionArgs& args);
void ReferencePrefillAttention(const HostPrefillAttentionArgs& args);
void ReferenceCopyBlocks(const HostCopyBlocksArgs& args);
void ReferenceChecksumBlocks(const HostChecksumBlocksArgs& args);

}  // namespace tandem

#endif  // TANDEM_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_
