// What the proof runs (bitwise_proof.h), and in which ways.

#ifndef TANDEM_TESTS_INTEGRATION_PROOF_CASES_H_
#define TANDEM_TESTS_INTEGRATION_PROOF_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/protocol/request_spec.h"
#include "runtime/protocol/sampled_token.h"

namespace tandem {

struct ProofRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int32_t num_choices = 1;

  int32_t prompt_tokens() const { return static_cast<int32_t>(prompt.size()); }
  int32_t BlocksOf(int32_t block_tokens) const;  // While all choices run.
};

struct ProofSet {
  std::vector<ProofRequest> requests;
  std::vector<ProofRequest> fillers;  // Complete the batch; compared like the others.
  // Arrives late, forks into many choices and takes the blocks of whoever runs (kPreempted). Its
  // prompt takes up part of one block.
  ProofRequest intruder;
  size_t intruder_after_tokens = 0;  // Sampled ones, of a batch: most of the blocks are taken then.
  int32_t max_model_tokens = 0;
};

enum class KvState : uint8_t { kCold, kPrefixHit, kPreempted, kResumed };

struct ProofVariant {
  bool batch = false;  // Else every request alone, one after the other.
  int32_t chunk = 0;   // Prompt tokens of a step beside the batch's decodes. 0: all.
  int num_threads = 1;
  int32_t block_tokens = 16;
  KvState state = KvState::kCold;
  bool disaggregated = false;  // Prompts are always computed by the other worker.
  // Workers take turns through the proof's paths, the first one beginning with this.
  size_t first_path = 0;
  bool overlap_steps = false;  // A step begins before the tokens of the last are seen.

  std::string ToString() const;
};

// The product, 384 variants.
std::vector<ProofVariant> AllProofVariants();

struct ProofResult {
  std::vector<SampledToken> prompt_logprobs;
  std::vector<std::vector<SampledToken>> choices;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_PROOF_CASES_H_
