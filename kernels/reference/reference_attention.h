// Rotary embedding, KV writes and attention in plain scalar code (kernels/api/attention.h).
// Tiles are [token][D].

#ifndef TANDEM_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_
#define TANDEM_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_

#include "kernels/api/attention.h"

namespace tandem {

KvTileFormat ReferenceTileFormat(const KvTileShape& shape);
void ReferenceRotaryTable(const RotaryTableArgs& args);
void ReferenceRotaryKvWrite(const RotaryKvWriteArgs& args);
void ReferenceDecodeAttention(const DecodeAttentionArgs& args);
void ReferencePrefillAttention(const PrefillAttentionArgs& args);
void ReferenceCopyBlocks(const CopyBlocksArgs& args);

}  // namespace tandem

#endif  // TANDEM_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_
