// A request for text as both front ends understand it, and the one place that checks its ranges.
//
//   parse (http/ or grpc/) → GenerateRequest → CheckRequest → tokenize → MakeSamplingParams

#ifndef TANDEM_SERVICES_ROUTER_GENERATE_REQUEST_H_
#define TANDEM_SERVICES_ROUTER_GENERATE_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/protocol/request_spec.h"
#include "services/router/model_info.h"

namespace tandem {

// How a front end calls the fields that CheckRequest names in its errors.
struct FieldNames {
  std::string_view model = "model";
  std::string_view prompt = "prompt";
  std::string_view temperature = "temperature";
  std::string_view top_p = "top_p";
  std::string_view top_k = "top_k";
  std::string_view n = "n";
  std::string_view max_tokens = "max_tokens";
  std::string_view min_tokens = "min_tokens";
  std::string_view stop = "stop";
  std::string_view stop_token_ids = "stop_token_ids";
  std::string_view logit_bias = "logit_bias";
  std::string_view logprobs = "logprobs";
  std::string_view prompt_logprobs = "prompt_logprobs";
  std::string_view cache_salt = "cache_salt";
};

using Prompt = std::variant<std::string, std::vector<int64_t>>;  // Text, or ids as they came.

struct GenerateRequest {
  std::string model;  // Empty: the served one.

  // Either prompts or a conversation.
  std::vector<Prompt> prompts;
  std::string messages_json;            // A JSON list; empty for prompts.
  std::string template_variables_json;  // A JSON object; empty for none.
  int64_t num_json_values = 0;          // In both, at most; keys count.
  bool add_generation_prompt = true;
  std::optional<bool> add_special_tokens;  // Default: true for text, false for a conversation.

  // Unset: the model's default (generation_config.json), else OpenAI's.
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;  // 0 or -1: off.
  std::optional<int64_t> seed;   // Unset: drawn here.
  int64_t n = 1;
  std::optional<int64_t> max_tokens;          // Unset: what is left of the context, or...
  std::optional<int64_t> default_max_tokens;  // ...at most this (completions: 16).
  int64_t min_tokens = 0;
  std::optional<int64_t> num_logprobs;  // For generated tokens, beside the sampled one.
  std::optional<int64_t> num_prompt_logprobs;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  std::vector<TokenBias> logit_bias;  // Rising ids, however they came.
  bool ignore_eos = false;
  bool skip_special_tokens = true;

  // Prefix caches are shared only by requests of the same salt; those without one share theirs.
  std::optional<std::string> cache_salt;

  // What the answer holds.
  bool stream = false;  // Token by token; else all of it at its end.
  bool include_usage = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // "token_id:17" for a token's text in logprobs.

  FieldNames names;
};

// Everything that can be said before tokenizing. InvalidArgument naming the field and the numbers;
// NotFound (model_not_found) if `model` is another. `isolate_cache`: it must have a cache_salt.
absl::Status CheckRequest(const GenerateRequest& request, const ModelInfo& model,
                          bool isolate_cache);

// For a request that passed CheckRequest and a prompt of `prompt_tokens`. `max_model_tokens` is the
// longest prompt + output that any worker takes; `drawn_seed` is used where the client gave none.
// InvalidArgument (context_length_exceeded) with the numbers if prompt and max_tokens do not fit.
absl::StatusOr<SamplingParams> MakeSamplingParams(const GenerateRequest& request,
                                                  const ModelInfo& model, int64_t prompt_tokens,
                                                  int64_t max_model_tokens, uint64_t drawn_seed);

// For a call whose prompts have so many tokens and whose choices may get so many, over all prompts:
// InvalidArgument if its answer could hold more than kMaxAnswerValues at once, or of prompts more
// than a quarter of the memory limit.
absl::Status CheckAnswerSize(const GenerateRequest& request, int64_t prompt_tokens,
                             int64_t max_tokens, int64_t memory_limit_bytes);

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_GENERATE_REQUEST_H_
