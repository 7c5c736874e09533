#include "services/router/model_info.h"

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

namespace json = boost::json;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path.string(), ": ", error.message()));
  if (size > kMaxConfigBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("%s has %d bytes, at most %d are read",
                                                      path.string(), size, kMaxConfigBytes));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return absl::UnavailableError(absl::StrCat("cannot read ", path.string()));
  return text.str();
}

absl::StatusOr<json::object> ParseObject(std::string_view text, const char* file) {
  json::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is not JSON: ", error.message()));
  }
  if (!value.is_object()) return absl::InvalidArgumentError(absl::StrCat(file, " is no object"));
  return std::move(value.get_object());
}

// The first of `keys` that is a positive integer; 0 if there is none.
absl::StatusOr<int64_t> FindPositive(const json::object& object,
                                     std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const json::value* value = object.if_contains(key);
    if (value == nullptr || value->is_null()) continue;
    if (!value->is_int64() || value->get_int64() < 1 || value->get_int64() > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "config.json: %s is %s, must be from 1 to %d", key, json::serialize(*value), INT32_MAX));
    }
    return value->get_int64();
  }
  return int64_t{0};
}

absl::Status AppendIds(const json::value& value, const char* file, std::vector<int32_t>* ids) {
  if (value.is_array()) {
    for (const json::value& item : value.get_array()) {
      TANDEM_RETURN_IF_ERROR(AppendIds(item, file, ids));
    }
    return absl::OkStatus();
  }
  if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: eos_token_id holds %s, not a token id", file, json::serialize(value)));
  }
  ids->push_back(static_cast<int32_t>(value.get_int64()));
  return absl::OkStatus();
}

absl::Status ReadEos(const json::object& object, const char* file, std::vector<int32_t>* ids) {
  const json::value* value = object.if_contains("eos_token_id");
  if (value == nullptr || value->is_null()) return absl::OkStatus();
  return AppendIds(*value, file, ids);
}

absl::Status ReadNumber(const json::object& object, const char* key, double low, double high,
                        double* out) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return absl::OkStatus();
  json::error_code error;
  const double number = value->to_number<double>(error);
  if (error || !(number >= low && number <= high)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("generation_config.json: %s is %s, must be from %g to %g", key,
                        json::serialize(*value), low, high));
  }
  *out = number;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelInfo> ParseModelInfo(std::string_view config_json,
                                         std::string_view generation_config_json) {
  TANDEM_ASSIGN_OR_RETURN(const json::object config, ParseObject(config_json, "config.json"));
  ModelInfo info;
  TANDEM_ASSIGN_OR_RETURN(info.vocab_size, FindPositive(config, {"vocab_size"}));
  if (info.vocab_size == 0) return absl::InvalidArgumentError("config.json has no vocab_size");
  TANDEM_ASSIGN_OR_RETURN(info.max_model_tokens, FindPositive(config, {"max_position_embeddings",
                                                                       "n_positions", "n_ctx"}));
  if (info.max_model_tokens == 0) {
    return absl::InvalidArgumentError(
        "config.json has neither max_position_embeddings nor n_positions");
  }
  if (!generation_config_json.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const json::object generation,
                            ParseObject(generation_config_json, "generation_config.json"));
    TANDEM_RETURN_IF_ERROR(ReadEos(generation, "generation_config.json", &info.eos_token_ids));
    double top_k = 0;
    TANDEM_RETURN_IF_ERROR(ReadNumber(generation, "temperature", 0, 2, &info.temperature));
    TANDEM_RETURN_IF_ERROR(ReadNumber(generation, "top_p", 1e-6, 1, &info.top_p));
    TANDEM_RETURN_IF_ERROR(ReadNumber(generation, "top_k", -1, INT32_MAX, &top_k));
    info.top_k = std::max<int64_t>(0, static_cast<int64_t>(top_k));
  }
  if (info.eos_token_ids.empty()) {
    TANDEM_RETURN_IF_ERROR(ReadEos(config, "config.json", &info.eos_token_ids));
  }
  for (int32_t id : info.eos_token_ids) {
    if (id >= info.vocab_size) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "config.json: the end token %d is outside the vocabulary of %d", id, info.vocab_size));
    }
  }
  return info;
}

absl::StatusOr<ModelInfo> ReadModelInfo(const std::string& folder, std::string_view served_name) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::canonical(folder, error);
  if (error) return absl::NotFoundError(absl::StrCat(folder, ": ", error.message()));
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadSmallFile(path / "config.json"));
  absl::StatusOr<std::string> generation = ReadSmallFile(path / "generation_config.json");
  if (!generation.ok() && generation.status().code() != absl::StatusCode::kNotFound) {
    return generation.status();
  }
  TANDEM_ASSIGN_OR_RETURN(ModelInfo info,
                          ParseModelInfo(config, generation.ok() ? *generation : ""));
  info.folder = path.string();
  info.served_name = served_name.empty() ? path.filename().string() : std::string(served_name);
  return info;
}

}  // namespace tandem
