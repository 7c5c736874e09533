#include "services/router/grpc/inference_convert.h"

#include <algorithm>
#include <string>

#include "services/router/api_error.h"

namespace tandem {
namespace {

// As the fields are called here.
constexpr FieldNames kProtoNames = {
    .top_p = "sampling.top_p",
    .top_k = "sampling.top_k",
    .n = "sampling.num_sequences",
    .max_tokens = "stopping.max_new_tokens",
    .min_tokens = "stopping.min_new_tokens",
    .stop = "stopping.stop_strings",
    .stop_token_ids = "stopping.stop_token_ids",
    .logprobs = "response.output_candidates.top_n",
    .prompt_logprobs = "response.prompt_candidates.top_n",
};

template <typename Candidates>
void AddCandidates(const SampledToken& token, int count, Candidates* out) {
  auto* list = out->Add();
  const size_t num = std::min<size_t>(token.top.size(), count);
  for (size_t i = 0; i < num; ++i) {
    auto* info = list->add_tokens();
    info->set_id(static_cast<uint32_t>(token.top[i].token));
    info->set_logprob(token.top[i].logprob);
    info->set_rank(static_cast<uint32_t>(i) + 1);
  }
}

void SetFinish(const ChoiceOutput& output, uint32_t num_tokens, v1::FinishInfo* out) {
  out->set_num_output_tokens(num_tokens);
  if (output.finish == FinishReason::kLength) {
    out->set_finish_reason(v1::FinishInfo::LENGTH);
    return;
  }
  out->set_finish_reason(v1::FinishInfo::STOP);
  if (!output.stop_string.empty()) {
    out->set_stop_string(output.stop_string);
  } else if (output.stop_token >= 0 && output.stopped_by_eos) {
    out->set_eos_token_id(static_cast<uint32_t>(output.stop_token));
  } else if (output.stop_token >= 0) {
    out->set_stop_token_id(static_cast<uint32_t>(output.stop_token));
  }
}

}  // namespace

absl::StatusOr<GenerateRequest> FromInferenceProto(const v1::GenerateRequest& in) {
  GenerateRequest r;
  r.names = kProtoNames;
  r.model = in.model();
  switch (in.prompt_case()) {
    case v1::GenerateRequest::kText:
      r.prompts.emplace_back(in.text());
      break;
    case v1::GenerateRequest::kTokenIds:
      r.prompts.emplace_back(
          std::vector<int64_t>(in.token_ids().ids().begin(), in.token_ids().ids().end()));
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return InvalidField("prompt", "prompt is missing: neither text nor token_ids");
  }
  if (in.has_temperature()) r.temperature = in.temperature();
  const v1::RandomSampling& sampling = in.sampling();
  if (sampling.num_sequences() > 0) r.n = sampling.num_sequences();
  if (sampling.top_k() > 0) r.top_k = sampling.top_k();
  if (sampling.top_p() != 0) r.top_p = sampling.top_p();
  if (sampling.has_seed()) r.seed = sampling.seed();
  const v1::StoppingCriteria& stopping = in.stopping();
  if (stopping.max_new_tokens() > 0) r.max_tokens = stopping.max_new_tokens();
  r.min_tokens = stopping.min_new_tokens();
  r.stop_token_ids.assign(stopping.stop_token_ids().begin(), stopping.stop_token_ids().end());
  r.stop.assign(stopping.stop_strings().begin(), stopping.stop_strings().end());
  r.ignore_eos = stopping.ignore_eos();
  const v1::ResponseOptions& response = in.response();
  if (response.has_skip_special_tokens()) r.skip_special_tokens = response.skip_special_tokens();
  if (response.output_logprobs()) r.num_logprobs = 0;
  if (response.has_output_candidates()) r.num_logprobs = response.output_candidates().top_n();
  if (response.prompt_logprobs()) r.num_prompt_logprobs = 0;
  if (response.has_prompt_candidates()) {
    r.num_prompt_logprobs = response.prompt_candidates().top_n();
  }
  if (in.has_cache_salt()) r.cache_salt = in.cache_salt();
  for (const auto& [token, bias] : in.logit_bias()) r.logit_bias.emplace_back(token, bias);
  std::sort(r.logit_bias.begin(), r.logit_bias.end());
  return r;
}

int64_t ResponseBytes(const CallOutput& output) {
  constexpr int64_t kTokenBytes = 96, kCandidateBytes = 64;  // Messages, their names, the wire.
  const auto bytes_of = [](const SampledToken& token) {
    return kTokenBytes + kCandidateBytes * std::ssize(token.top);
  };
  int64_t bytes = 0;
  if (const auto* token = std::get_if<ChoiceOutput>(&output)) {
    bytes = bytes_of(token->token) + 2 * std::ssize(token->text);
  } else if (const auto* prompt = std::get_if<PromptOutput>(&output)) {
    for (const SampledToken& of_prompt : prompt->prompt_logprobs) bytes += bytes_of(of_prompt);
  }
  return bytes;
}

InferenceAnswer::InferenceAnswer(const v1::GenerateRequest& request)
    : prompt_token_ids_(request.response().prompt_token_ids()),
      prompt_logprobs_(request.response().prompt_logprobs() ||
                       request.response().has_prompt_candidates()),
      num_prompt_candidates_(static_cast<int>(request.response().prompt_candidates().top_n())),
      text_(!request.response().has_output_text() || request.response().output_text()),
      token_ids_(request.response().output_token_ids()),
      logprobs_(request.response().output_logprobs() || request.response().has_output_candidates()),
      num_candidates_(static_cast<int>(request.response().output_candidates().top_n())) {}

bool InferenceAnswer::Add(const CallOutput& output, const std::vector<int32_t>& prompt_token_ids,
                          v1::GenerateResponse* out) {
  if (const auto* prompt = std::get_if<PromptOutput>(&output)) {
    AddPrompt(*prompt, prompt_token_ids, out->mutable_prompt_info());
    return false;  // It travels with the first token.
  }
  const auto* token = std::get_if<ChoiceOutput>(&output);
  if (token == nullptr) return false;
  const auto index = static_cast<uint32_t>(token->choice);
  auto* outputs = out->mutable_outputs();
  const auto found = std::find_if(outputs->begin(), outputs->end(),
                                  [&](const auto& known) { return known.index() == index; });
  v1::SequenceOutput* sequence = found != outputs->end() ? &*found : outputs->Add();
  sequence->set_index(index);
  AddToken(*token, sequence);
  return true;
}

void InferenceAnswer::AddPrompt(const PromptOutput& output,
                                const std::vector<int32_t>& prompt_token_ids,
                                v1::PromptInfo* out) const {
  out->set_num_prompt_tokens(static_cast<uint32_t>(prompt_token_ids.size()));
  out->set_num_cached_tokens(static_cast<uint32_t>(output.cached_tokens));
  out->set_system_fingerprint(output.numerics_id);
  if (prompt_token_ids_) {
    out->mutable_token_ids()->Add(prompt_token_ids.begin(), prompt_token_ids.end());
  }
  if (!prompt_logprobs_) return;
  for (const SampledToken& token : output.prompt_logprobs) {
    out->add_logprobs(token.logprob);
    out->add_ranks(static_cast<uint32_t>(token.rank));
    if (num_prompt_candidates_ > 0) {
      AddCandidates(token, num_prompt_candidates_, out->mutable_candidate_tokens());
    }
  }
}

void InferenceAnswer::AddToken(const ChoiceOutput& output, v1::SequenceOutput* out) {
  if (text_) *out->mutable_text() += output.text;
  uint32_t& num_tokens = num_tokens_[output.choice];
  ++num_tokens;
  out->set_num_tokens(out->num_tokens() + 1);
  if (token_ids_) out->add_token_ids(static_cast<uint32_t>(output.token.token));
  if (logprobs_) {
    out->add_logprobs(output.token.logprob);
    out->add_ranks(static_cast<uint32_t>(output.token.rank));
    if (num_candidates_ > 0) {
      AddCandidates(output.token, num_candidates_, out->mutable_candidate_tokens());
    }
  }
  if (output.finish != FinishReason::kNone)
    SetFinish(output, num_tokens, out->mutable_finish_info());
}

}  // namespace tandem
