// Row operations in plain scalar code (kernels/api/rows.h).

#ifndef TANDEM_KERNELS_REFERENCE_REFERENCE_ROWS_H_
#define TANDEM_KERNELS_REFERENCE_REFERENCE_ROWS_H_

#include <cstdint>
#include <vector>

#include "kernels/support/host_args.h"

namespace tandem {

void ReferenceEmbedding(const HostEmbeddingArgs& args);
// One row, [count]: y[i] = (x[i] / root of the mean square) · weight[i].
std::vector<float> ReferenceNormRow(const float* x, const float* weight, float epsilon,
                                    int64_t count);
void ReferenceRmsNorm(const HostRmsNormArgs& args);
void ReferenceLayerNorm(const HostLayerNormArgs& args);
void ReferenceSoftCap(const HostSoftCapArgs& args);
void ReferenceAdd(const HostAddArgs& args);
void ReferenceGatherRows(const HostGatherRowsArgs& args);

}  // namespace tandem

#endif  // TANDEM_KERNELS_REFERENCE_REFERENCE_ROWS_H_
