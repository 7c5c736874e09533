#include "runtime/config/generation_config.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"
#include "runtime/config/json.h"

namespace tandem {
namespace {

namespace json = boost::json;

// What changes the tokens of Transformers' generate(), with the value that changes nothing (and so
// do 0, false and an empty list). Not listed: what only says where an answer ends by length.
struct Neutral {
  const char* name;
  double neutral;
};
constexpr Neutral kUnsupported[] = {
    {"bad_words_ids", 0},
    {"begin_suppress_tokens", 0},
    {"diversity_penalty", 0},
    {"encoder_repetition_penalty", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"exponential_decay_length_penalty", 0},
    {"force_words_ids", 0},
    {"forced_bos_token_id", -1},
    {"forced_eos_token_id", -1},
    {"guidance_scale", 1},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"min_p", 0},
    {"no_repeat_ngram_size", 0},
    {"num_beams", 1},
    {"penalty_alpha", 0},
    {"repetition_penalty", 1},
    {"sequence_bias", 0},
    {"stop_strings", 0},
    {"suppress_tokens", 0},
    {"top_h", 1},
    {"typical_p", 1},
    {"watermarking_config", 0},
};

bool ChangesNothing(const json::value& value, double neutral) {
  if (value.is_number()) {
    const double number = value.to_number<double>();
    return number == neutral || (number == 0 && neutral != -1);
  }
  if (value.is_bool()) return !value.get_bool();
  return value.is_array() && value.get_array().empty();
}

absl::StatusOr<std::optional<int32_t>> ReadToken(const JsonFields& fields, std::string_view name,
                                                 const json::value& value, int64_t vocab_size,
                                                 GenerationConfig* config) {
  const std::optional<int64_t> id = ExactInteger(value);
  if (!id) {
    return fields.Wrong(name, absl::StrCat("holds ", ShortJson(value), ", want token ids"));
  }
  if (*id >= 0 && *id < vocab_size) return static_cast<int32_t>(*id);
  config->ignored.push_back(absl::StrFormat("%s: %s %d is outside the vocabulary of %d",
                                            fields.what(), std::string(name), *id, vocab_size));
  return std::nullopt;
}

// The tokens that `fields` names, where nothing before did.
absl::Status ReadTokens(const JsonFields& fields, int64_t vocab_size, GenerationConfig* config) {
  const json::value* eos = fields.Find("eos_token_id");
  if (eos != nullptr && config->eos_token_ids.empty()) {
    const json::array list = eos->is_array() ? eos->get_array() : json::array{*eos};
    if (list.size() > kMaxEosTokens) {
      return fields.Wrong("eos_token_id", absl::StrFormat("lists %d tokens, at most %d",
                                                          list.size(), kMaxEosTokens));
    }
    std::vector<int32_t>& ids = config->eos_token_ids;
    for (const json::value& value : list) {
      TANDEM_ASSIGN_OR_RETURN(const std::optional<int32_t> id,
                              ReadToken(fields, "eos_token_id", value, vocab_size, config));
      if (id) ids.push_back(*id);
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  }
  const json::value* bos = fields.Find("bos_token_id");
  if (bos != nullptr && config->bos_token_id < 0) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<int32_t> id,
                            ReadToken(fields, "bos_token_id", *bos, vocab_size, config));
    config->bos_token_id = id.value_or(-1);
  }
  return absl::OkStatus();
}

// Leaves `out` as it is if the field is missing or wrong.
void ReadDefault(const JsonFields& fields, const char* name, double low, double high, double* out,
                 std::vector<std::string>* ignored) {
  const absl::StatusOr<double> number = fields.NumberOr(name, low, high, *out);
  if (number.ok()) {
    *out = *number;
  } else {
    ignored->push_back(std::string(number.status().message()));
  }
}

void ReadDefaults(const JsonFields& fields, GenerationConfig* config) {
  std::vector<std::string>* const ignored = &config->ignored;
  ReadDefault(fields, "temperature", 0, 2, &config->temperature, ignored);
  ReadDefault(fields, "top_p", 1e-6, 1, &config->top_p, ignored);
  double top_k = 0;
  ReadDefault(fields, "top_k", -1, INT32_MAX, &top_k, ignored);
  config->top_k = std::max<int64_t>(0, static_cast<int64_t>(top_k));
  for (const auto& [name, neutral] : kUnsupported) {
    const json::value* value = fields.Find(name);
    if (value == nullptr || ChangesNothing(*value, neutral)) continue;
    ignored->push_back(absl::StrFormat("%s: %s is %s, which is not supported", fields.what(), name,
                                       ShortJson(*value)));
  }
}

}  // namespace

absl::StatusOr<GenerationConfig> GenerationConfig::Parse(std::string_view config,
                                                         std::string_view generation_config,
                                                         int64_t vocab_size) {
  GenerationConfig result;
  if (!generation_config.empty()) {
    TANDEM_ASSIGN_OR_RETURN(
        const json::object object,
        ParseJsonObject(generation_config, "generation_config.json", kConfigLimits));
    const JsonFields fields(object, "generation_config.json");
    TANDEM_RETURN_IF_ERROR(ReadTokens(fields, vocab_size, &result));
    ReadDefaults(fields, &result);
  }
  TANDEM_ASSIGN_OR_RETURN(const json::object object,
                          ParseJsonObject(config, "config.json", kConfigLimits));
  TANDEM_RETURN_IF_ERROR(ReadTokens(JsonFields(object, "config.json"), vocab_size, &result));
  return result;
}

}  // namespace tandem
