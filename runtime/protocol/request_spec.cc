#include "runtime/protocol/request_spec.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check_range.h"
#include "runtime/base/number_text.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

absl::Status Validate(const SamplingParams& sampling, const SpecLimits& limits) {
  const float temperature = sampling.temperature, top_p = sampling.top_p;
  if (!(temperature >= 0 && std::isfinite(temperature))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sampling.temperature: %s, want 0 or more", NumberText(temperature)));
  }
  if (!(top_p > 0 && top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sampling.top_p: %s, want more than 0, at most 1", NumberText(top_p)));
  }
  TANDEM_RETURN_IF_ERROR(CheckRange("sampling.top_k", sampling.top_k, 0, INT32_MAX));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("sampling.max_tokens", sampling.max_tokens, 1, kMaxRequestTokens));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("sampling.min_tokens", sampling.min_tokens, 0, sampling.max_tokens));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("sampling.num_logprobs", sampling.num_logprobs, -1, kMaxTopLogprobs));
  TANDEM_RETURN_IF_ERROR(CheckRange("sampling.num_prompt_logprobs", sampling.num_prompt_logprobs,
                                    -1, kMaxTopLogprobs));
  TANDEM_RETURN_IF_ERROR(CheckRange("sampling.stop_token_ids: number",
                                    std::ssize(sampling.stop_token_ids), 0, kMaxStopTokenIds));
  // A checkpoint may name an end token that it has no logit for: it is compared, never computed.
  TANDEM_RETURN_IF_ERROR(CheckTokenIds<int32_t>("sampling.stop_token_ids", sampling.stop_token_ids,
                                                SpecLimits().vocab_size));
  return CheckLogitBias("sampling.logit_bias", sampling.logit_bias, limits.vocab_size);
}

absl::Status CheckChoices(const std::vector<int32_t>& choices, int64_t generated) {
  // They share what was generated only while that is nothing.
  TANDEM_RETURN_IF_ERROR(
      CheckRange("choices: number", std::ssize(choices), 1, generated > 0 ? 1 : kMaxChoices));
  int32_t previous = -1;
  for (const int32_t choice : choices) {
    TANDEM_RETURN_IF_ERROR(CheckRange("choices", choice, previous + 1, kMaxChoices - 1));
    previous = choice;
  }
  return absl::OkStatus();
}

}  // namespace

RequestSpec SpecOfPrompt(std::vector<int32_t> prompt, int32_t num_choices) {
  RequestSpec spec;
  spec.prompt_tokens = static_cast<int32_t>(prompt.size());
  spec.token_ids = std::move(prompt);
  spec.choices.resize(static_cast<size_t>(num_choices));
  std::iota(spec.choices.begin(), spec.choices.end(), 0);
  return spec;
}

absl::Status Validate(const RequestSpec& spec, const SpecLimits& limits) {
  TANDEM_RETURN_IF_ERROR(CheckRange("time_left_us", spec.time_left_us, 0, INT64_MAX));
  TANDEM_RETURN_IF_ERROR(Validate(spec.sampling, limits));
  const int64_t num_tokens = std::ssize(spec.token_ids);
  TANDEM_RETURN_IF_ERROR(CheckRange("token_ids: number", num_tokens, 1, kMaxRequestTokens));
  TANDEM_RETURN_IF_ERROR(CheckRange("prompt_tokens", spec.prompt_tokens, 1, num_tokens));
  const int64_t generated = num_tokens - spec.prompt_tokens;
  TANDEM_RETURN_IF_ERROR(
      CheckRange("token_ids: generated", generated, 0, int64_t{spec.sampling.max_tokens} - 1));
  TANDEM_RETURN_IF_ERROR(CheckChoices(spec.choices, generated));
  return CheckTokenIds<int32_t>("token_ids", spec.token_ids, limits.vocab_size);
}

template <typename Id>
absl::Status CheckTokenIds(std::string_view field, std::span<const Id> ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has token id %d at %d, must be from 0 to %d", std::string(field),
                        ids[i], i, vocab_size - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckLogitBias(std::string_view field, std::span<const TokenBias> logit_bias,
                            int64_t vocab_size) {
  const std::string name(field);
  if (logit_bias.size() > kMaxLogitBias) {
    return absl::InvalidArgumentError(absl::StrFormat("%s has %d tokens, at most %d are allowed",
                                                      name, logit_bias.size(), kMaxLogitBias));
  }
  int32_t previous = -1;
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s has token id %d, must be from 0 to %d", name, token, vocab_size - 1));
    }
    if (token == previous) {
      return absl::InvalidArgumentError(absl::StrFormat("%s has token id %d twice", name, token));
    }
    if (token < previous) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s has token id %d after %d, ids must rise", name, token, previous));
    }
    if (!(bias >= -kMaxAbsLogitBias && bias <= kMaxAbsLogitBias)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is %s for token id %d, must be from %g to %g", name, NumberText(bias),
                          token, -kMaxAbsLogitBias, kMaxAbsLogitBias));
    }
    previous = token;
  }
  return absl::OkStatus();
}

template absl::Status CheckTokenIds(std::string_view, std::span<const int32_t>, int64_t);
template absl::Status CheckTokenIds(std::string_view, std::span<const int64_t>, int64_t);

}  // namespace tandem
