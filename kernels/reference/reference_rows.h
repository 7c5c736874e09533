// Row operations in plain scalar code (kernels/api/rows.h).

#ifndef TANDEM_KERNELS_REFERENCE_REFERENCE_ROWS_H_
#define TANDEM_KERNELS_REFERENCE_REFERENCE_ROWS_H_

#include "kernels/api/rows.h"

namespace tandem {

void ReferenceEmbedding(const EmbeddingArgs& args);
void ReferenceRmsNorm(const RmsNormArgs& args);
void ReferenceLayerNorm(const LayerNormArgs& args);
void ReferenceSwiGlu(const SwiGluArgs& args);
void ReferenceGelu(const GeluArgs& args);
void ReferenceAdd(const AddArgs& args);
void ReferenceGatherRows(const GatherRowsArgs& args);
void ReferenceLogSoftmax(const LogSoftmaxArgs& args);

}  // namespace tandem

#endif  // TANDEM_KERNELS_REFERENCE_REFERENCE_ROWS_H_
