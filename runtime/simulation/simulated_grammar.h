// A grammar made of hashes: a quarter of the vocabulary may follow, another one after every token.
// So a mask that is missing, stale or of another sequence changes tokens.

#ifndef TANDEM_RUNTIME_SIMULATION_SIMULATED_GRAMMAR_H_
#define TANDEM_RUNTIME_SIMULATION_SIMULATED_GRAMMAR_H_

#include <functional>
#include <memory>
#include <utility>

#include "runtime/engine/token_masker.h"

namespace tandem {

class SimulatedGrammar final : public TokenMasker {
 public:
  // `late` says of each mask that is asked for whether it is not ready; null: none is late.
  explicit SimulatedGrammar(std::function<bool()> late = nullptr) : late_(std::move(late)) {}

  // Every second request has them, by its sampling seed.
  std::unique_ptr<SequenceMasks> MasksOf(const RequestSpec& spec) override;

 private:
  const std::function<bool()> late_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_SIMULATED_GRAMMAR_H_
