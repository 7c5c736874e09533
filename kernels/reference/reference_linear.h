// Linear layers in plain scalar code. Packed weights: [N, K] row-major in the weight type.

#ifndef TANDEM_KERNELS_REFERENCE_REFERENCE_LINEAR_H_
#define TANDEM_KERNELS_REFERENCE_REFERENCE_LINEAR_H_

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/support/host_args.h"

namespace tandem {

PackedFormat ReferencePackedFormat(const LinearSpec& spec);
void ReferencePack(const LinearSpec& spec, std::span<const WeightPart> parts, std::byte* packed);
std::unique_ptr<LinearOp> ReferencePrepare(const LinearSpec& spec, const std::byte* packed);
void ReferenceLinear(const HostLinearArgs& args);

}  // namespace tandem

#endif  // TANDEM_KERNELS_REFERENCE_REFERENCE_LINEAR_H_
