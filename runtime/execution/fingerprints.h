// The two names by which workers know what they may share.

#ifndef TANDEM_RUNTIME_EXECUTION_FINGERPRINTS_H_
#define TANDEM_RUNTIME_EXECUTION_FINGERPRINTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "kernels/probe/numerics_probe.h"
#include "runtime/model/kv_layout.h"
#include "runtime/model/model.h"

namespace tandem {

// Hex. Workers of one kv_class may exchange blocks: same model and weights, KV format, tile, block
// size and layers.
std::string KvClass(const Model& model, const KvLayout& layout);

// What of the layers' options the numerics_id of `model` is measured with.
ProbedOptions ProbedOptionsOf(const Model& model);

// Hex. Workers of one numerics_id may continue each other's streams: the same tokens, bit for bit.
// Runs every kernel that it needs and the sampler on fixed inputs. Engine thread only.
absl::StatusOr<std::string> NumericsId(const Model& model, Backend* backend);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_EXECUTION_FINGERPRINTS_H_
