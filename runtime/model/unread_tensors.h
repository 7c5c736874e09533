// Tensors of a checkpoint that its model does not read.

#ifndef TANDEM_RUNTIME_MODEL_UNREAD_TENSORS_H_
#define TANDEM_RUNTIME_MODEL_UNREAD_TENSORS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/weight_source.h"

namespace tandem {

// Names of tensors that are left out, without the buffers that old checkpoints carry along (causal
// masks, rotary frequencies) and scales of inputs beside matrices of 8-bit floats.
// FailedPrecondition naming some of those that cannot be left out without changing the numbers: any
// of a layer (a bias that config.json does not announce, layers beyond its number of them), and any
// that stands beside a tensor that is read.
absl::StatusOr<std::vector<std::string>> UnreadTensors(const ModelSpec& spec,
                                                       const WeightSource& source);

// A few of them for a message: "a", "b", …
std::string ShortList(const std::vector<std::string>& names);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_UNREAD_TENSORS_H_
