#include "services/router/generate_request.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "runtime/base/number_text.h"
#include "runtime/base/status_macros.h"
#include "services/router/api_error.h"
#include "services/router/api_limits.h"

namespace tandem {
namespace {

absl::Status CheckRange(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrFormat("%s is %d, must be from %d to %d", std::string(field),
                                             value, low, high));
}

absl::Status CheckSampling(const GenerateRequest& r) {
  if (r.temperature.has_value() && !(*r.temperature >= 0.0 && *r.temperature <= kMaxTemperature)) {
    return InvalidField(
        r.names.temperature,
        absl::StrFormat("%s is %s, must be from 0 to %g", std::string(r.names.temperature),
                        NumberText(*r.temperature), kMaxTemperature));
  }
  if (r.top_p.has_value() && !(*r.top_p > 0.0 && *r.top_p <= 1.0)) {
    return InvalidField(r.names.top_p,
                        absl::StrFormat("%s is %s, must be above 0 and at most 1",
                                        std::string(r.names.top_p), NumberText(*r.top_p)));
  }
  if (r.top_k.has_value()) {
    TANDEM_RETURN_IF_ERROR(CheckRange(r.names.top_k, *r.top_k, -1, INT32_MAX));
  }
  TANDEM_RETURN_IF_ERROR(CheckRange(r.names.n, r.n, 1, kMaxN));
  if (r.num_logprobs.has_value()) {
    TANDEM_RETURN_IF_ERROR(CheckRange(r.names.logprobs, *r.num_logprobs, 0, kMaxLogprobs));
  }
  if (r.num_prompt_logprobs.has_value()) {
    TANDEM_RETURN_IF_ERROR(
        CheckRange(r.names.prompt_logprobs, *r.num_prompt_logprobs, 0, kMaxLogprobs));
  }
  return absl::OkStatus();
}

// What the runtime checks by its own names, under the client's.
absl::Status OfField(std::string_view field, const absl::Status& checked) {
  return checked.ok() ? checked : InvalidField(field, std::string(checked.message()));
}

absl::Status CheckIds(std::string_view field, const std::vector<int64_t>& ids,
                      const ModelInfo& model) {
  return OfField(field, CheckTokenIds<int64_t>(field, ids, model.vocab_size));
}

absl::Status CheckStops(const GenerateRequest& r, const ModelInfo& model) {
  if (r.stop.size() > kMaxStopStrings) {
    return InvalidField(r.names.stop,
                        absl::StrFormat("%s has %d strings, at most %d are allowed",
                                        std::string(r.names.stop), r.stop.size(), kMaxStopStrings));
  }
  for (const std::string& stop : r.stop) {
    if (stop.empty() || stop.size() > kMaxStopStringBytes) {
      return InvalidField(
          r.names.stop,
          absl::StrFormat("%s has a string of %d bytes, must be from 1 to %d",
                          std::string(r.names.stop), stop.size(), kMaxStopStringBytes));
    }
  }
  if (r.stop_token_ids.size() > kMaxStopIds) {
    return InvalidField(
        r.names.stop_token_ids,
        absl::StrFormat("%s has %d ids, at most %d are allowed",
                        std::string(r.names.stop_token_ids), r.stop_token_ids.size(), kMaxStopIds));
  }
  return CheckIds(r.names.stop_token_ids, r.stop_token_ids, model);
}

absl::Status CheckBias(const GenerateRequest& r, const ModelInfo& model) {
  return OfField(r.names.logit_bias,
                 CheckLogitBias(r.names.logit_bias, r.logit_bias, model.vocab_size));
}

absl::Status CheckLengths(const GenerateRequest& r) {
  if (r.max_tokens.has_value()) {
    TANDEM_RETURN_IF_ERROR(CheckRange(r.names.max_tokens, *r.max_tokens, 1, kMaxRequestTokens));
  }
  TANDEM_RETURN_IF_ERROR(CheckRange(r.names.min_tokens, r.min_tokens, 0, INT32_MAX));
  if (r.max_tokens.has_value() && r.min_tokens > *r.max_tokens) {
    return InvalidField(
        r.names.min_tokens,
        absl::StrFormat("%s is %d, more than %s, %d", std::string(r.names.min_tokens), r.min_tokens,
                        std::string(r.names.max_tokens), *r.max_tokens));
  }
  return absl::OkStatus();
}

absl::Status CheckCacheSalt(const GenerateRequest& r, bool isolate_cache) {
  const std::string_view field = r.names.cache_salt;
  if (!r.cache_salt.has_value()) {
    if (!isolate_cache) return absl::OkStatus();
    return InvalidField(field, absl::StrFormat("%s is missing; this server was started with "
                                               "--isolate-cache, so every request must have one",
                                               std::string(field)));
  }
  const size_t bytes = r.cache_salt->size();
  if (bytes >= 1 && bytes <= kMaxCacheSaltBytes) return absl::OkStatus();
  return InvalidField(field, absl::StrFormat("%s has %d bytes, must be from 1 to %d",
                                             std::string(field), bytes, kMaxCacheSaltBytes));
}

absl::Status CheckPrompts(const GenerateRequest& r, const ModelInfo& model) {
  if (!r.messages_json.empty()) return absl::OkStatus();
  if (r.prompts.empty() || r.prompts.size() > kMaxPrompts) {
    return InvalidField(r.names.prompt, absl::StrFormat("%s holds %d prompts, must be from 1 to %d",
                                                        std::string(r.names.prompt),
                                                        r.prompts.size(), kMaxPrompts));
  }
  const int64_t sequences = static_cast<int64_t>(r.prompts.size()) * r.n;
  if (sequences > kMaxSequencesPerCall) {
    return InvalidField(r.names.n, absl::StrFormat("%d prompts with %s = %d are %d sequences, at "
                                                   "most %d are allowed in one request",
                                                   r.prompts.size(), std::string(r.names.n), r.n,
                                                   sequences, kMaxSequencesPerCall));
  }
  for (const Prompt& prompt : r.prompts) {
    if (const auto* ids = std::get_if<std::vector<int64_t>>(&prompt)) {
      TANDEM_RETURN_IF_ERROR(CheckIds(r.names.prompt, *ids, model));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRequest(const GenerateRequest& request, const ModelInfo& model,
                          bool isolate_cache) {
  if (!model.Names(request.model)) return NotServed(model, request.model, request.names.model);
  TANDEM_RETURN_IF_ERROR(CheckSampling(request));
  TANDEM_RETURN_IF_ERROR(CheckStops(request, model));
  TANDEM_RETURN_IF_ERROR(CheckBias(request, model));
  TANDEM_RETURN_IF_ERROR(CheckLengths(request));
  TANDEM_RETURN_IF_ERROR(CheckCacheSalt(request, isolate_cache));
  return CheckPrompts(request, model);
}

absl::StatusOr<SamplingParams> MakeSamplingParams(const GenerateRequest& request,
                                                  const ModelInfo& model, int64_t prompt_tokens,
                                                  int64_t max_model_tokens, uint64_t drawn_seed) {
  if (prompt_tokens == 0) return InvalidField(request.names.prompt, "the prompt is empty");
  const int64_t room = max_model_tokens - prompt_tokens;
  if (room < 1) {
    return WithApiCode(
        InvalidField(request.names.prompt,
                     absl::StrFormat("the prompt has %d tokens; the context of %d tokens must also "
                                     "hold at least one generated token",
                                     prompt_tokens, max_model_tokens)),
        kContextLengthExceeded);
  }
  if (request.max_tokens.has_value() && *request.max_tokens > room) {
    return WithApiCode(
        InvalidField(request.names.max_tokens,
                     absl::StrFormat(
                         "the prompt has %d tokens and %s is %d, %d in all; the context "
                         "holds %d",
                         prompt_tokens, std::string(request.names.max_tokens), *request.max_tokens,
                         prompt_tokens + *request.max_tokens, max_model_tokens)),
        kContextLengthExceeded);
  }
  SamplingParams params;
  params.temperature =
      static_cast<float>(request.temperature.value_or(model.generation.temperature));
  params.top_p = static_cast<float>(request.top_p.value_or(model.generation.top_p));
  // A positive double may round to zero as a float.
  params.top_p = std::max(params.top_p, std::numeric_limits<float>::min());
  params.top_k =
      static_cast<int32_t>(std::max<int64_t>(0, request.top_k.value_or(model.generation.top_k)));
  params.seed = request.seed.has_value() ? static_cast<uint64_t>(*request.seed) : drawn_seed;
  params.max_tokens = static_cast<int32_t>(
      request.max_tokens.value_or(std::min(room, request.default_max_tokens.value_or(room))));
  params.min_tokens =
      static_cast<int32_t>(std::min<int64_t>(request.min_tokens, params.max_tokens));
  params.num_logprobs = static_cast<int32_t>(request.num_logprobs.value_or(-1));
  params.num_prompt_logprobs = static_cast<int32_t>(request.num_prompt_logprobs.value_or(-1));
  params.logit_bias = request.logit_bias;
  if (!request.ignore_eos) params.stop_token_ids = model.generation.eos_token_ids;
  for (int64_t id : request.stop_token_ids) {
    params.stop_token_ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(params.stop_token_ids.begin(), params.stop_token_ids.end());
  params.stop_token_ids.erase(
      std::unique(params.stop_token_ids.begin(), params.stop_token_ids.end()),
      params.stop_token_ids.end());
  return params;
}

absl::Status CheckAnswerSize(const GenerateRequest& request, int64_t prompt_tokens,
                             int64_t max_tokens, int64_t memory_limit_bytes) {
  int64_t of_prompts = 0, of_choices = 0;
  if (request.num_prompt_logprobs.has_value()) {
    of_prompts = prompt_tokens * (1 + *request.num_prompt_logprobs);
  }
  if (!request.stream) of_choices = request.n * max_tokens * (1 + request.num_logprobs.value_or(0));
  const int64_t most_of_prompts =
      std::min(kMaxAnswerValues, memory_limit_bytes / 4 / kPromptLogprobBytes);
  if (of_prompts > most_of_prompts) {
    return InvalidField(request.names.prompt_logprobs,
                        absl::StrFormat("the answer may have %d tokens and logprobs of prompts; at "
                                        "most %d fit one answer (--memory-limit)",
                                        of_prompts, most_of_prompts));
  }
  if (of_prompts + of_choices <= kMaxAnswerValues) return absl::OkStatus();
  return InvalidField(
      request.names.max_tokens,
      absl::StrFormat("the answer may have %d tokens and logprobs of prompts and %d of up to %d "
                      "generated tokens for each of %d choices; at most %d fit one answer that is "
                      "not streamed",
                      of_prompts, of_choices, max_tokens, request.n, kMaxAnswerValues));
}

}  // namespace tandem
