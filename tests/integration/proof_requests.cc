#include "tests/integration/proof_requests.h"

#include <map>
#include <utility>

#include "runtime/base/random.h"

namespace tandem {
namespace {

// Prompts do not begin alike: what is cached is then known exactly.
ProofRequest MakeRequest(int32_t index, int32_t prompt_tokens, int32_t vocabulary) {
  Random random(7'000 + static_cast<uint64_t>(index));
  ProofRequest request;
  for (int32_t i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocabulary))));
  }
  request.prompt.front() = 3 + index;
  request.sampling.seed = 1'000'003ull * static_cast<uint64_t>(index + 1);
  request.sampling.num_logprobs = 5;
  return request;
}

ProofRequest Greedy(ProofRequest request, int32_t max_tokens) {
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  return request;
}

ProofRequest Seeded(ProofRequest request, int32_t max_tokens, float top_p, int32_t top_k,
                    int32_t num_choices = 1) {
  request.sampling.temperature = 0.9f;
  request.sampling.top_p = top_p;
  request.sampling.top_k = top_k;
  request.sampling.max_tokens = max_tokens;
  request.num_choices = num_choices;
  return request;
}

// The bias keeps away what the prompt has, and draws what follows it by one.
ProofRequest Biased(ProofRequest request, int32_t vocabulary) {
  std::map<int32_t, float> bias;
  for (const int32_t token : request.prompt) {
    bias[token] = -100.0f;
    bias[(token + 1) % vocabulary] = 1.5f;
    if (bias.size() > 40) break;
  }
  request.sampling.logit_bias.assign(bias.begin(), bias.end());
  return request;
}

ProofRequest Scored(ProofRequest request) {
  request.sampling.num_prompt_logprobs = 3;
  return request;
}

// They run when the others come, and outlive the prompts of most.
void AddFillers(int32_t count, int32_t max_tokens, int32_t vocabulary, ProofSet* set) {
  for (int32_t i = 0; i < count; ++i) {
    const ProofRequest filler = MakeRequest(20 + i, 1 + i % 7, vocabulary);
    set->fillers.push_back(i % 2 == 0 ? Greedy(filler, max_tokens)
                                      : Seeded(filler, max_tokens, 0.95f, 50));
  }
  set->intruder = Seeded(MakeRequest(60, 9, vocabulary), 3, 1.0f, 0, 128);
}

}  // namespace

ProofSet ShortSet(int32_t vocabulary) {
  ProofSet set;
  set.requests = {
      Greedy(MakeRequest(0, 17, vocabulary), 8),
      Biased(Scored(Seeded(MakeRequest(1, 33, vocabulary), 8, 0.9f, 0, 4)), vocabulary),
      Seeded(MakeRequest(2, 100, vocabulary), 8, 1.0f, 20),
  };
  set.max_model_tokens = 128;
  set.intruder_after_tokens = 40;
  AddFillers(26, 20, vocabulary, &set);
  return set;
}

ProofSet LongSet(int32_t vocabulary) {
  ProofSet set;
  set.requests = {
      Greedy(MakeRequest(0, 1, vocabulary), 8),
      Seeded(MakeRequest(1, 15, vocabulary), 8, 0.9f, 0),
      Seeded(MakeRequest(2, 16, vocabulary), 8, 1.0f, 20, 4),
      Scored(Greedy(MakeRequest(3, 17, vocabulary), 8)),
      Scored(Seeded(MakeRequest(4, 100, vocabulary), 8, 0.95f, 40, 4)),
      Biased(Greedy(MakeRequest(5, 300, vocabulary), 8), vocabulary),
      Seeded(MakeRequest(6, 1'020, vocabulary), 8, 0.8f, 0),
      Scored(Seeded(MakeRequest(7, 1'100, vocabulary), 8, 0.9f, 100)),
  };
  set.max_model_tokens = 1'200;
  set.intruder_after_tokens = 450;
  AddFillers(28, 60, vocabulary, &set);
  return set;
}

}  // namespace tandem
