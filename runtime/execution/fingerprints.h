// The two names by which workers know what they may share.

#ifndef TANDEM_RUNTIME_EXECUTION_FINGERPRINTS_H_
#define TANDEM_RUNTIME_EXECUTION_FINGERPRINTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/base/sha256.h"
#include "runtime/model/kv_layout.h"
#include "runtime/model/model.h"

namespace tandem {

// Raised when a rule of docs/numerics.md changes.
inline constexpr int kNumericsVersion = 1;

// Runs every kernel on fixed inputs; equal digests mean equal bits. Takes milliseconds.
absl::StatusOr<Sha256Digest> ProbeNumerics(Backend* backend, DType compute_dtype);

// Hex. Workers of one kv_class may exchange blocks: same model and weights, KV format, tile, block
// size and layers.
std::string KvClass(const Model& model, const KvLayout& layout);

// Hex. Workers of one numerics_id may continue each other's streams: the same tokens, bit for bit.
absl::StatusOr<std::string> NumericsId(const Model& model, Backend* backend);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_EXECUTION_FINGERPRINTS_H_
