// Deterministic random weights for a config.json without a checkpoint (`--load-format dummy`): for
// measuring shapes that nobody wants to download. The same on every machine, whatever the threads.

#ifndef TANDEM_RUNTIME_MODEL_DUMMY_WEIGHTS_H_
#define TANDEM_RUNTIME_MODEL_DUMMY_WEIGHTS_H_

#include <memory>

#include "runtime/config/model_config.h"
#include "runtime/model/weight_source.h"

namespace tandem {

// Matrices are uniform with variance 1/fan_in, so that activations keep their size through the
// layers and logits are neither flat nor infinite; norm weights are 1 and biases small. Values are
// of the config's checkpoint type.
std::unique_ptr<WeightSource> MakeDummyWeights(const ModelConfig& config);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_DUMMY_WEIGHTS_H_
