// What every backend refuses alike: InvalidArgument for sizes and strides out of range and for
// missing pointers, with the numbers. Array contents are trusted.

#ifndef TANDEM_KERNELS_SUPPORT_VALIDATE_H_
#define TANDEM_KERNELS_SUPPORT_VALIDATE_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "kernels/api/attention.h"
#include "kernels/api/linear.h"
#include "kernels/api/rows.h"
#include "kernels/api/sampling.h"

namespace tandem {

absl::Status Validate(const KvTileShape& shape);
absl::Status Validate(const LinearSpec& spec);
// `packed_bytes`: what the backend needs for `spec`.
absl::Status ValidatePacking(const LinearSpec& spec, std::span<const WeightPart> parts,
                             std::span<std::byte> packed, size_t packed_bytes);
absl::Status ValidatePacked(DevicePtr<const std::byte> packed, size_t size_bytes,
                            size_t packed_bytes);

absl::Status Validate(const EmbeddingArgs& args);
absl::Status Validate(const RmsNormArgs& args);
absl::Status Validate(const LayerNormArgs& args);
absl::Status Validate(const LinearArgs& args);
// Both, and that the norm's output is the layer's input.
absl::Status Validate(const RmsNormArgs& norm, const LinearArgs& layer);
absl::Status Validate(const LayerNormArgs& norm, const LinearArgs& layer);
absl::Status Validate(const AddArgs& args);
absl::Status Validate(const SoftCapArgs& args);
absl::Status Validate(const GatherRowsArgs& args);
absl::Status Validate(const SampleArgs& args);
absl::Status Validate(const RotaryTableArgs& args);
// `tile_bytes`: of the backend's format for the pool's shape.
absl::Status Validate(const RotaryKvWriteArgs& args, size_t tile_bytes);
absl::Status Validate(const DecodeAttentionArgs& args, size_t tile_bytes);
absl::Status Validate(const PrefillAttentionArgs& args, size_t tile_bytes);
absl::Status Validate(const CopyBlocksArgs& args);
absl::Status Validate(const ChecksumBlocksArgs& args);
absl::Status Validate(const DiscardBlocksArgs& args);

// Memory that is given for a pool.
absl::Status ValidatePool(const KvPoolMemory& memory, size_t pool_bytes);

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_VALIDATE_H_
