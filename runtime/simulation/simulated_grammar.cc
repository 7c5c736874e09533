#include "runtime/simulation/simulated_grammar.h"

#include <vector>

#include "runtime/base/random.h"
#include "runtime/simulation/simulated_model.h"

namespace tandem {
namespace {

class HashedMasks final : public SequenceMasks {
 public:
  HashedMasks(uint64_t seed, int32_t prompt_tokens, std::function<bool()> late)
      : seed_(seed), prompt_tokens_(prompt_tokens), late_(std::move(late)) {}

  TokenMask After(std::span<const int32_t> token_ids) override {
    if (late_ && late_()) return {};
    // Which token it is counts, and how many have been generated.
    const auto generated = static_cast<uint64_t>(std::ssize(token_ids) - prompt_tokens_);
    uint64_t hash = Mix64(Mix64(seed_ + generated) + static_cast<uint64_t>(token_ids.back()));
    for (uint32_t& word : words_) {
      hash = Mix64(hash + 1);
      word = static_cast<uint32_t>(hash & hash >> 32);
    }
    return {words_};
  }

 private:
  const uint64_t seed_;
  const int32_t prompt_tokens_;
  const std::function<bool()> late_;
  std::vector<uint32_t> words_ = std::vector<uint32_t>(SimulatedModel::kVocabulary / 32);
};

}  // namespace

std::unique_ptr<SequenceMasks> SimulatedGrammar::MasksOf(const RequestSpec& spec) {
  const uint64_t seed = spec.sampling.seed;
  if (Mix64(seed) % 2 != 0) return nullptr;
  return std::make_unique<HashedMasks>(seed, spec.prompt_tokens, late_);
}

}  // namespace tandem
