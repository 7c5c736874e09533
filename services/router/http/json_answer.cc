#include "services/router/http/json_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "services/router/api_error.h"

namespace tandem {
namespace {

std::string_view FinishJson(FinishReason finish) {
  switch (finish) {
    case FinishReason::kNone:
      return "null";
    case FinishReason::kStop:
      return "\"stop\"";
    case FinishReason::kLength:
      return "\"length\"";
  }
  return "null";
}

// The stop string or stop token that ended it; null for the model's own end.
std::string StopReasonJson(const ChoiceOutput& output) {
  if (!output.stop_string.empty()) {
    std::string out;
    AppendJsonString(output.stop_string, &out);
    return out;
  }
  if (output.stop_token >= 0 && !output.stopped_by_eos) return absl::StrCat(output.stop_token);
  return "null";
}

constexpr char kBeginEvent[] = "data: ";
constexpr char kEndEvent[] = "\n\n";

}  // namespace

JsonAnswer::JsonAnswer(AnswerOptions options)
    : options_(std::move(options)),
      choices_(options_.num_prompts * options_.num_choices),
      prompt_logprobs_(options_.num_prompts) {}

// {"id", "object", "created", "model", "system_fingerprint"
void JsonAnswer::AppendHead(std::string_view object, std::string* out) const {
  *out += "{\"id\":";
  AppendJsonString(options_.id, out);
  *out += ",\"object\":";
  AppendJsonString(object, out);
  absl::StrAppend(out, ",\"created\":", options_.created_s, ",\"model\":");
  AppendJsonString(options_.model, out);
  *out += ",\"system_fingerprint\":";
  if (fingerprint_.empty()) {
    *out += "null";
  } else {
    AppendJsonString(fingerprint_, out);
  }
}

// ,"logprobs", "finish_reason", "stop_reason", maybe "token_ids" and "prompt_token_ids"
void JsonAnswer::AppendChoiceTail(int index, const Choice& choice, std::string* out) const {
  *out += ",\"logprobs\":";
  *out += options_.num_logprobs >= 0 ? choice.logprobs.Json(options_.chat) : "null";
  *out += ",\"finish_reason\":";
  *out += FinishJson(choice.finish);
  *out += ",\"stop_reason\":" + choice.stop_reason;
  if (options_.return_token_ids) {
    *out += ",\"token_ids\":";
    AppendIds(choice.token_ids, out);
    if (!options_.chat && !choice.started) {
      *out += ",\"prompt_token_ids\":";
      AppendIds(options_.prompt_token_ids(index / options_.num_choices), out);
    }
  }
}

void JsonAnswer::AppendUsage(std::string* out) const {
  absl::StrAppend(out, "{\"prompt_tokens\":", usage_.prompt_tokens,
                  ",\"completion_tokens\":", usage_.completion_tokens,
                  ",\"total_tokens\":", usage_.prompt_tokens + usage_.completion_tokens,
                  ",\"prompt_tokens_details\":{\"cached_tokens\":", usage_.cached_tokens, "}}");
}

// ---- Streamed ----

void JsonAnswer::AppendEvents(const CallOutput& output, std::string* out) {
  if (const auto* prompt = std::get_if<PromptOutput>(&output)) {
    fingerprint_ = prompt->numerics_id;
  } else if (const auto* token = std::get_if<ChoiceOutput>(&output)) {
    AppendChoiceEvent(*token, out);
  } else {
    AppendEndEvents(std::get<CallEnd>(output), out);
  }
}

void JsonAnswer::AppendChoiceEvent(const ChoiceOutput& output, std::string* out) {
  Choice& choice = choices_[output.choice];
  AddToken(output);
  // Every token makes an event, also one whose text waits for the next: clients time tokens by it.
  *out += kBeginEvent;
  AppendHead(options_.chat ? "chat.completion.chunk" : "text_completion", out);
  if (options_.chat && options_.return_token_ids && !choice.started) {
    *out += ",\"prompt_token_ids\":";
    AppendIds(options_.prompt_token_ids(0), out);
  }
  absl::StrAppend(out, ",\"choices\":[{\"index\":", output.choice);
  if (options_.chat) {
    *out += choice.started ? ",\"delta\":{\"content\":"
                           : ",\"delta\":{\"role\":\"assistant\",\"content\":";
    AppendJsonString(choice.text, out);
    *out += '}';
  } else {
    *out += ",\"text\":";
    AppendJsonString(choice.text, out);
  }
  AppendChoiceTail(output.choice, choice, out);
  *out += options_.include_usage ? "}],\"usage\":null}" : "}]}";
  *out += kEndEvent;
  choice.started = true;
  choice.text.clear();
  choice.token_ids.clear();
  choice.logprobs.Clear();
}

void JsonAnswer::AppendEndEvents(const CallEnd& end, std::string* out) {
  if (!end.status.ok()) {
    absl::StrAppend(out, kBeginEvent, ErrorJson(end.status), kEndEvent);
    return;
  }
  usage_ = end.usage;
  if (options_.include_usage) {
    *out += kBeginEvent;
    AppendHead(options_.chat ? "chat.completion.chunk" : "text_completion", out);
    *out += ",\"choices\":[],\"usage\":";
    AppendUsage(out);
    absl::StrAppend(out, "}", kEndEvent);
  }
  absl::StrAppend(out, kBeginEvent, "[DONE]", kEndEvent);
}

// ---- Not streamed: one object when the call ends ----

void JsonAnswer::AddToken(const ChoiceOutput& output) {
  Choice& choice = choices_[output.choice];
  choice.text += output.text;
  if (options_.return_token_ids) choice.token_ids.push_back(output.token.token);
  if (options_.num_logprobs >= 0) {
    choice.logprobs.Add(output.token, options_.num_logprobs, options_.chat, options_.names);
  }
  if (output.finish != FinishReason::kNone) {
    choice.finish = output.finish;
    choice.stop_reason = StopReasonJson(output);
  }
}

void JsonAnswer::Add(const CallOutput& output) {
  if (const auto* prompt = std::get_if<PromptOutput>(&output)) {
    fingerprint_ = prompt->numerics_id;
    if (options_.num_prompt_logprobs >= 0) {
      prompt_logprobs_[prompt->prompt] =
          PromptLogprobsJson(prompt->prompt_logprobs, options_.names);
    }
  } else if (const auto* token = std::get_if<ChoiceOutput>(&output)) {
    AddToken(*token);
  } else {
    usage_ = std::get<CallEnd>(output).usage;
  }
}

int64_t JsonAnswer::num_bytes() const {
  constexpr int64_t kIdBytes = 8;  // As a number with its comma.
  int64_t bytes = 0;
  for (const std::string& logprobs : prompt_logprobs_) bytes += std::ssize(logprobs);
  for (const Choice& choice : choices_) {
    bytes += std::ssize(choice.text) + choice.logprobs.num_bytes() +
             kIdBytes * std::ssize(choice.token_ids);
  }
  return bytes;
}

std::string JsonAnswer::Json() const {
  std::string out;
  AppendHead(options_.chat ? "chat.completion" : "text_completion", &out);
  out += ",\"choices\":[";
  for (size_t i = 0; i < choices_.size(); ++i) {
    const int index = static_cast<int>(i);
    absl::StrAppend(&out, i > 0 ? "," : "", "{\"index\":", index);
    out += options_.chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"text\":";
    AppendJsonString(choices_[i].text, &out);
    if (options_.chat) out += ",\"refusal\":null}";
    AppendChoiceTail(index, choices_[i], &out);
    if (!options_.chat && options_.num_prompt_logprobs >= 0) {
      out += ",\"prompt_logprobs\":" + prompt_logprobs_[index / options_.num_choices];
    }
    out += '}';
  }
  out += ']';
  if (options_.chat && options_.num_prompt_logprobs >= 0) {
    out += ",\"prompt_logprobs\":" + prompt_logprobs_[0];
  }
  if (options_.chat && options_.return_token_ids) {
    out += ",\"prompt_token_ids\":";
    AppendIds(options_.prompt_token_ids(0), &out);
  }
  out += ",\"usage\":";
  AppendUsage(&out);
  return out + "}";
}

}  // namespace tandem
