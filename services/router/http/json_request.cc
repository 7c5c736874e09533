#include "services/router/http/json_request.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/number_text.h"
#include "runtime/base/status_macros.h"
#include "services/router/api_error.h"
#include "services/router/api_limits.h"
#include "services/router/http/field_reader.h"
#include "services/router/http/strict_json.h"

namespace tandem {
namespace {

namespace json = boost::json;

constexpr int64_t kDefaultCompletionTokens = 16;

// ---- Known but not supported ----

// Values that ask for nothing.
enum class Neutral {
  kAbsent,      // Only null.
  kEmpty,       // null, "", [], {}.
  kFalse,       // null, false.
  kZero,        // null, 0.
  kOne,         // null, 1.
  kNoneOrAuto,  // null, "none", "auto".
};

struct UnsupportedField {
  std::string_view name;
  Neutral neutral;
};

constexpr UnsupportedField kUnsupported[] = {
    {"presence_penalty", Neutral::kZero},
    {"frequency_penalty", Neutral::kZero},
    {"repetition_penalty", Neutral::kOne},
    {"length_penalty", Neutral::kOne},
    {"min_p", Neutral::kZero},
    {"bad_words", Neutral::kEmpty},
    {"allowed_token_ids", Neutral::kEmpty},
    {"use_beam_search", Neutral::kFalse},
    {"early_stopping", Neutral::kFalse},
    {"include_stop_str_in_output", Neutral::kFalse},
    {"truncate_prompt_tokens", Neutral::kAbsent},
    {"echo", Neutral::kFalse},
    {"suffix", Neutral::kEmpty},
    {"prompt_embeds", Neutral::kEmpty},
    {"structured_outputs", Neutral::kEmpty},
    {"guided_json", Neutral::kEmpty},
    {"guided_regex", Neutral::kEmpty},
    {"guided_choice", Neutral::kEmpty},
    {"guided_grammar", Neutral::kEmpty},
    {"tools", Neutral::kEmpty},
    {"tool_choice", Neutral::kNoneOrAuto},
    {"functions", Neutral::kEmpty},
    {"function_call", Neutral::kNoneOrAuto},
    {"audio", Neutral::kAbsent},
    {"prediction", Neutral::kAbsent},
    {"web_search_options", Neutral::kAbsent},
    {"reasoning_effort", Neutral::kNoneOrAuto},
    {"documents", Neutral::kEmpty},
    {"chat_template", Neutral::kEmpty},
    {"continue_final_message", Neutral::kFalse},
    {"mm_processor_kwargs", Neutral::kEmpty},
    {"kv_transfer_params", Neutral::kEmpty},
    {"logits_processors", Neutral::kEmpty},
    {"priority", Neutral::kZero},
};

bool IsNumber(const json::value& value, double number) {
  return value.is_number() && value.to_number<double>() == number;
}

bool IsEmpty(const json::value& value) {
  return (value.is_string() && value.get_string().empty()) ||
         (value.is_array() && value.get_array().empty()) ||
         (value.is_object() && value.get_object().empty());
}

bool AsksForNothing(const json::value& value, Neutral neutral) {
  switch (neutral) {
    case Neutral::kAbsent:
      return false;
    case Neutral::kEmpty:
      return IsEmpty(value);
    case Neutral::kFalse:
      return value.is_bool() && !value.get_bool();
    case Neutral::kZero:
      return IsNumber(value, 0);
    case Neutral::kOne:
      return IsNumber(value, 1);
    case Neutral::kNoneOrAuto:
      return value.is_string() && (value.get_string() == "none" || value.get_string() == "auto");
  }
  return false;
}

absl::Status RefuseUnsupported(const FieldReader& fields) {
  for (const UnsupportedField& field : kUnsupported) {
    const json::value* value = fields.Find(field.name);
    if (value != nullptr && !AsksForNothing(*value, field.neutral)) {
      return InvalidField(field.name, absl::StrCat(std::string(field.name), " is not supported"));
    }
  }
  if (const json::value* format = fields.Find("response_format")) {
    const json::object* object = format->if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    if (type == nullptr || !type->is_string()) {
      return WrongType("response_format", "an object with a type", *format);
    }
    if (type->get_string() != "text") {
      return InvalidField("response_format",
                          "response_format is supported with type \"text\" only");
    }
  }
  if (const json::value* modalities = fields.Find("modalities")) {
    const json::array* list = modalities->if_array();
    if (list == nullptr) return WrongType("modalities", "a list", *modalities);
    for (const json::value& item : *list) {
      if (!item.is_string() || item.get_string() != "text") {
        return InvalidField("modalities", "modalities is supported with \"text\" only");
      }
    }
  }
  return absl::OkStatus();
}

// ---- What both APIs share ----

absl::Status ReadStreamOptions(const FieldReader& fields, GenerateRequest* r) {
  TANDEM_RETURN_IF_ERROR(fields.Read("stream", &r->stream));
  if (r->stream && r->num_prompt_logprobs.has_value()) {
    return InvalidField("prompt_logprobs", "prompt_logprobs is not available in a stream");
  }
  const json::value* options = fields.Find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) return WrongType("stream_options", "an object", *options);
  if (!r->stream) {
    return InvalidField("stream_options", "stream_options is allowed only when stream is true");
  }
  const FieldReader reader(options->get_object(), "stream_options.");
  bool continuous = false;
  TANDEM_RETURN_IF_ERROR(reader.Read("include_usage", &r->include_usage));
  TANDEM_RETURN_IF_ERROR(reader.Read("continuous_usage_stats", &continuous));
  if (continuous) {
    return InvalidField("stream_options.continuous_usage_stats",
                        "stream_options.continuous_usage_stats is not supported");
  }
  return absl::OkStatus();
}

// {"17": -100, "4": 2.5}
absl::Status ReadLogitBias(const FieldReader& fields, std::vector<TokenBias>* out) {
  constexpr std::string_view kField = "logit_bias";
  constexpr size_t kMostShown = 32;  // So much of a key that is no token is shown.
  const json::value* const value = fields.Find(kField);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_object()) return WrongType(kField, "an object", *value);
  for (const json::key_value_pair& entry : value->get_object()) {
    const std::string_view key(entry.key().data(), entry.key().size());
    int32_t token = 0;
    std::from_chars(key.data(), key.data() + key.size(), token);
    // As JSON writes it: "09" and "9" would be one token with two biases.
    if (absl::StrCat(token) != key) {
      const std::string shown(key.substr(0, kMostShown));
      return InvalidField(kField, absl::StrCat("logit_bias has the key \"", absl::CHexEscape(shown),
                                               "\", must be a token id"));
    }
    if (!entry.value().is_number()) {
      return WrongItem(kField, absl::StrCat("logit_bias[", token, "]"), "a number", entry.value());
    }
    const auto bias = entry.value().to_number<double>();
    if (std::abs(bias) > kMaxAbsLogitBias) {  // Before it is rounded.
      return InvalidField(
          kField, absl::StrFormat("logit_bias is %s for token id %d, must be from %g to %g",
                                  NumberText(bias), token, -kMaxAbsLogitBias, kMaxAbsLogitBias));
    }
    out->emplace_back(token, static_cast<float>(bias));
  }
  std::sort(out->begin(), out->end());
  return absl::OkStatus();
}

absl::Status ReadCommon(const FieldReader& fields, GenerateRequest* r) {
  TANDEM_RETURN_IF_ERROR(RefuseUnsupported(fields));
  TANDEM_RETURN_IF_ERROR(fields.Read("model", &r->model));
  TANDEM_RETURN_IF_ERROR(fields.Read("temperature", &r->temperature));
  TANDEM_RETURN_IF_ERROR(fields.Read("top_p", &r->top_p));
  TANDEM_RETURN_IF_ERROR(fields.Read("top_k", &r->top_k));
  TANDEM_RETURN_IF_ERROR(fields.Read("seed", &r->seed));
  TANDEM_RETURN_IF_ERROR(fields.Read("n", &r->n));
  if (const json::value* best_of = fields.Find("best_of");
      best_of != nullptr && !IsNumber(*best_of, static_cast<double>(r->n))) {
    return InvalidField("best_of", "best_of is supported only where it equals n");
  }
  TANDEM_RETURN_IF_ERROR(fields.Read("max_tokens", &r->max_tokens));
  TANDEM_RETURN_IF_ERROR(fields.Read("min_tokens", &r->min_tokens));
  TANDEM_RETURN_IF_ERROR(fields.ReadStrings("stop", &r->stop));
  TANDEM_RETURN_IF_ERROR(fields.Read("stop_token_ids", &r->stop_token_ids));
  TANDEM_RETURN_IF_ERROR(ReadLogitBias(fields, &r->logit_bias));
  TANDEM_RETURN_IF_ERROR(fields.Read("ignore_eos", &r->ignore_eos));
  TANDEM_RETURN_IF_ERROR(fields.Read("skip_special_tokens", &r->skip_special_tokens));
  TANDEM_RETURN_IF_ERROR(fields.Read("prompt_logprobs", &r->num_prompt_logprobs));
  TANDEM_RETURN_IF_ERROR(fields.Read("return_token_ids", &r->return_token_ids));
  TANDEM_RETURN_IF_ERROR(fields.Read("return_tokens_as_token_ids", &r->tokens_as_ids));
  TANDEM_RETURN_IF_ERROR(fields.Read("add_special_tokens", &r->add_special_tokens));
  TANDEM_RETURN_IF_ERROR(fields.Read("cache_salt", &r->cache_salt));
  return ReadStreamOptions(fields, r);
}

absl::StatusOr<json::value> ParseBody(std::string_view body) {
  TANDEM_ASSIGN_OR_RETURN(json::value value, ParseStrictJson(body));
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body must be a JSON object, not ", std::string(JsonKind(value))));
  }
  return value;
}

// ---- Completions ----

absl::StatusOr<Prompt> ReadIds(const json::array& list, const std::string& name) {
  std::vector<int64_t> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_int64()) {
      return WrongItem("prompt", absl::StrCat(name, "[", i, "]"), "a token id", list[i]);
    }
    ids.push_back(list[i].get_int64());
  }
  return Prompt(std::move(ids));
}

// A string, a list of strings, of ids or of lists of ids.
absl::Status ReadPrompts(const FieldReader& fields, std::vector<Prompt>* prompts) {
  const json::value* value = fields.Find("prompt");
  if (value == nullptr) return InvalidField("prompt", "prompt is missing");
  if (value->is_string()) {
    prompts->emplace_back(std::string(value->get_string()));
    return absl::OkStatus();
  }
  if (!value->is_array()) {
    return WrongType("prompt", "a string or a list of strings, ids or lists of ids", *value);
  }
  const json::array& list = value->get_array();
  if (list.empty()) return InvalidField("prompt", "prompt is an empty list");
  if (list[0].is_number()) {
    TANDEM_ASSIGN_OR_RETURN(Prompt ids, ReadIds(list, "prompt"));
    prompts->push_back(std::move(ids));
    return absl::OkStatus();
  }
  if (list.size() > kMaxPrompts) {
    return InvalidField("prompt", absl::StrFormat("prompt holds %d prompts, at most %d are allowed",
                                                  list.size(), kMaxPrompts));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = absl::StrCat("prompt[", i, "]");
    if (list[i].is_string()) {
      prompts->emplace_back(std::string(list[i].get_string()));
    } else if (list[i].is_array()) {
      TANDEM_ASSIGN_OR_RETURN(Prompt ids, ReadIds(list[i].get_array(), name));
      prompts->push_back(std::move(ids));
    } else {
      return WrongItem("prompt", name, "a string or a list of ids", list[i]);
    }
  }
  return absl::OkStatus();
}

// ---- Chat ----

// The texts of a list of parts, joined by line breaks.
absl::StatusOr<std::string> JoinParts(const json::array& parts, const std::string& name) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part_name = absl::StrCat(name, "[", i, "]");
    if (!parts[i].is_object()) return WrongType(part_name, "an object", parts[i]);
    const FieldReader fields(parts[i].get_object(), part_name + ".");
    std::string type;
    TANDEM_RETURN_IF_ERROR(fields.Read("type", &type));
    if (type != "text") {
      return InvalidField(fields.Name("type"),
                          absl::StrCat(fields.Name("type"), " is supported as \"text\" only"));
    }
    if (fields.Find("text") == nullptr) {
      return InvalidField(fields.Name("text"), absl::StrCat(fields.Name("text"), " is missing"));
    }
    std::string part_text;
    TANDEM_RETURN_IF_ERROR(fields.Read("text", &part_text));
    if (i > 0) text += "\n";
    text += part_text;
  }
  return text;
}

// Gives every message a content that templates can use; what else it has is theirs, too.
absl::Status ReadMessage(const std::string& name, json::value* value) {
  if (!value->is_object()) return WrongType(name, "an object", *value);
  json::object& message = value->get_object();
  const FieldReader fields(message, name + ".");
  std::string role;
  TANDEM_RETURN_IF_ERROR(fields.Read("role", &role));
  if (role.empty()) {
    return InvalidField(fields.Name("role"), absl::StrCat(fields.Name("role"), " is missing"));
  }
  for (std::string_view refused : {"tool_calls", "function_call", "audio"}) {
    const json::value* extra = fields.Find(refused);
    if (extra != nullptr && !IsEmpty(*extra)) {
      return InvalidField(fields.Name(refused),
                          absl::StrCat(fields.Name(refused), " is not supported"));
    }
  }
  const json::value* content = fields.Find("content");
  if (content == nullptr) {
    if (role != "assistant") {
      return InvalidField(fields.Name("content"),
                          absl::StrCat(fields.Name("content"), " is missing"));
    }
    message["content"] = "";
  } else if (content->is_array()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text,
                            JoinParts(content->get_array(), fields.Name("content")));
    message["content"] = text;
  } else if (!content->is_string()) {
    return WrongType(fields.Name("content"), "a string or a list of parts", *content);
  }
  return absl::OkStatus();
}

// In place: a conversation with all that its messages have beside their content is kept once.
absl::Status ReadMessages(json::object* body, GenerateRequest* r) {
  json::value* const value = body->if_contains("messages");
  if (value == nullptr || value->is_null()) return InvalidField("messages", "messages is missing");
  if (!value->is_array()) return WrongType("messages", "a list", *value);
  json::array& list = value->get_array();
  if (list.empty() || list.size() > kMaxMessages) {
    return InvalidField(
        "messages", absl::StrFormat("messages has %d messages, must be from 1 to %d", list.size(),
                                    kMaxMessages));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(ReadMessage(absl::StrCat("messages[", i, "]"), &list[i]));
  }
  r->messages_json = json::serialize(*value);
  value->emplace_null();
  return absl::OkStatus();
}

absl::Status ReadChatLogprobs(const FieldReader& fields, GenerateRequest* r) {
  bool logprobs = false;
  std::optional<int64_t> top_logprobs;
  TANDEM_RETURN_IF_ERROR(fields.Read("logprobs", &logprobs));
  TANDEM_RETURN_IF_ERROR(fields.Read("top_logprobs", &top_logprobs));
  if (!logprobs && top_logprobs.value_or(0) != 0) {
    return InvalidField("top_logprobs", "top_logprobs is allowed only when logprobs is true");
  }
  if (logprobs) r->num_logprobs = top_logprobs.value_or(0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerateRequest> ParseCompletionRequest(std::string_view body) {
  TANDEM_ASSIGN_OR_RETURN(const json::value value, ParseBody(body));
  const FieldReader fields(value.get_object());
  GenerateRequest r;
  TANDEM_RETURN_IF_ERROR(ReadCommon(fields, &r));
  TANDEM_RETURN_IF_ERROR(ReadPrompts(fields, &r.prompts));
  TANDEM_RETURN_IF_ERROR(fields.Read("logprobs", &r.num_logprobs));
  r.default_max_tokens = kDefaultCompletionTokens;
  return r;
}

absl::StatusOr<GenerateRequest> ParseChatRequest(std::string_view body) {
  TANDEM_ASSIGN_OR_RETURN(json::value value, ParseBody(body));
  const FieldReader fields(value.get_object());
  GenerateRequest r;
  r.names.prompt = "messages";
  r.names.logprobs = "top_logprobs";
  TANDEM_RETURN_IF_ERROR(ReadCommon(fields, &r));
  TANDEM_RETURN_IF_ERROR(ReadMessages(&value.get_object(), &r));
  TANDEM_RETURN_IF_ERROR(ReadChatLogprobs(fields, &r));
  if (fields.Find("max_completion_tokens") != nullptr) {  // OpenAI's newer name goes first.
    r.names.max_tokens = "max_completion_tokens";
    TANDEM_RETURN_IF_ERROR(fields.Read("max_completion_tokens", &r.max_tokens));
  }
  TANDEM_RETURN_IF_ERROR(fields.Read("add_generation_prompt", &r.add_generation_prompt));
  if (const json::value* variables = fields.Find("chat_template_kwargs")) {
    if (!variables->is_object()) return WrongType("chat_template_kwargs", "an object", *variables);
    r.template_variables_json = json::serialize(*variables);
  }
  r.num_json_values = MostJsonValues(body);
  return r;
}

}  // namespace tandem
