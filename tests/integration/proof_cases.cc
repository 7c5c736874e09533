#include "tests/integration/proof_cases.h"

#include "absl/strings/str_format.h"
#include "runtime/base/math.h"

namespace tandem {

int32_t ProofRequest::BlocksOf(int32_t block_tokens) const {
  const int32_t shared = prompt_tokens() / block_tokens;
  const int32_t all = CeilDiv(prompt_tokens() + sampling.max_tokens, block_tokens);
  return shared + num_choices * (all - shared);
}

std::string ProofVariant::ToString() const {
  static constexpr const char* kStates[] = {"cold", "prefix hit", "preempted", "resumed"};
  return absl::StrFormat("%s, chunk %s, %d threads, blocks of %d, %s, %s, from path %d on%s",
                         batch ? "batch of 32" : "alone",
                         chunk == 0 ? "whole" : absl::StrFormat("%d", chunk), num_threads,
                         block_tokens, kStates[static_cast<size_t>(state)],
                         disaggregated ? "disaggregated" : "hybrid", first_path,
                         overlap_steps ? ", steps overlap" : "");
}

std::vector<ProofVariant> AllProofVariants() {
  std::vector<ProofVariant> variants;
  for (const bool batch : {false, true}) {
    for (const int32_t chunk : {16, 64, 100, 0}) {
      for (const int num_threads : {1, 2, 3}) {
        for (const int32_t block_tokens : {16, 32}) {
          for (const KvState state :
               {KvState::kCold, KvState::kPrefixHit, KvState::kPreempted, KvState::kResumed}) {
            for (const bool disaggregated : {false, true}) {
              variants.push_back({.batch = batch,
                                  .chunk = chunk,
                                  .num_threads = num_threads,
                                  .block_tokens = block_tokens,
                                  .state = state,
                                  .disaggregated = disaggregated});
            }
          }
        }
      }
    }
  }
  return variants;
}

}  // namespace tandem
