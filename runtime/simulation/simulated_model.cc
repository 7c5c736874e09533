#include "runtime/simulation/simulated_model.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "runtime/base/random.h"

namespace tandem {
namespace {

constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;

uint64_t Combine(uint64_t a, uint64_t b) { return Mix64(a * kOdd + Mix64(b + kOdd)); }

bool Stops(const SamplingParams& sampling, int32_t token) {
  return std::find(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end(), token) !=
         sampling.stop_token_ids.end();
}

}  // namespace

uint64_t SimulatedModel::Payload(uint64_t previous, int32_t token, int32_t position) {
  return Combine(Combine(previous, static_cast<uint64_t>(token)), static_cast<uint64_t>(position));
}

void SimulatedContext::Append(uint64_t payload) {
  if (window_ == 0) {
    state_ = Combine(state_, payload);
    return;
  }
  visible_.push_back(payload);
  if (visible_.size() > window_) visible_.pop_front();
}

uint64_t SimulatedContext::state() const {
  return std::accumulate(visible_.begin(), visible_.end(), state_, &Combine);
}

SampledToken SimulatedModel::Draw(uint64_t state, int32_t position, int32_t choice,
                                  int32_t prompt_tokens, const SamplingParams& sampling,
                                  TokenMask mask) const {
  uint64_t hash = state;
  for (const auto& [token, bias] : sampling.logit_bias) {  // Not its effect: that it is there.
    hash = Combine(Combine(hash, static_cast<uint64_t>(token)), std::bit_cast<uint32_t>(bias));
  }
  if (sampling.temperature > 0) {
    hash = Combine(Combine(Combine(hash, sampling.seed), static_cast<uint64_t>(choice)),
                   static_cast<uint64_t>(position));
  }
  const bool stop_masked = position - prompt_tokens < sampling.min_tokens;
  int32_t token = 0;
  do {
    hash = Mix64(hash + kOdd);
    token = static_cast<int32_t>(hash % static_cast<uint64_t>(vocabulary_));
  } while (!mask.Allows(token) || (stop_masked && Stops(sampling, token)));
  return Score(state, token, sampling.num_logprobs);
}

SampledToken SimulatedModel::Score(uint64_t state, int32_t token, int32_t num_top) const {
  SampledToken scored{.token = token};
  if (num_top < 0) return scored;
  const uint64_t hash = Combine(state, static_cast<uint64_t>(token));
  scored.logprob = -static_cast<float>(hash % 4096) / 256;
  scored.rank = static_cast<int32_t>(hash % 7) + 1;
  for (int32_t i = 0; i < num_top; ++i) {
    const uint64_t top = Combine(state, static_cast<uint64_t>(i) + (uint64_t{1} << 32));
    scored.top.push_back({.token = static_cast<int32_t>(top % static_cast<uint64_t>(vocabulary_)),
                          .logprob = -static_cast<float>(i)});
  }
  return scored;
}

std::vector<SampledToken> SimulatedModel::Generate(std::span<const int32_t> prompt, int32_t choice,
                                                   const SamplingParams& sampling,
                                                   SequenceMasks* masks,
                                                   int32_t max_model_tokens) const {
  SimulatedContext context(window_);
  uint64_t payload = numerics_;
  int32_t position = 0;
  std::vector<int32_t> tokens;
  const auto append = [&](int32_t token) {
    payload = Payload(payload, token, position++);
    context.Append(payload);
    tokens.push_back(token);
  };
  for (int32_t token : prompt) append(token);
  const int32_t prompt_tokens = position;
  std::vector<SampledToken> generated;
  while (position < max_model_tokens &&
         static_cast<int32_t>(generated.size()) < sampling.max_tokens) {
    const TokenMask mask = masks == nullptr ? TokenMask() : masks->After(tokens);
    generated.push_back(Draw(context.state(), position, choice, prompt_tokens, sampling, mask));
    if (Stops(sampling, generated.back().token)) break;
    append(generated.back().token);
  }
  return generated;
}

std::vector<SampledToken> SimulatedModel::PromptLogprobs(std::span<const int32_t> prompt,
                                                         int32_t num_prompt_logprobs) const {
  std::vector<SampledToken> scored;
  SimulatedContext context(window_);
  uint64_t payload = numerics_;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    payload = Payload(payload, prompt[i], static_cast<int32_t>(i));
    context.Append(payload);
    scored.push_back(Score(context.state(), prompt[i + 1], num_prompt_logprobs));
  }
  return scored;
}

}  // namespace tandem
