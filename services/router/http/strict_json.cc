#include "services/router/http/strict_json.h"

#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/router/api_error.h"
#include "services/router/api_limits.h"

namespace tandem {
namespace {

namespace json = boost::json;
using json::string_view;

// Events of a parse; keeps the keys of every open object.
class KeyChecker {
 public:
  static constexpr size_t max_object_size = size_t{1} << 20;
  static constexpr size_t max_array_size = size_t{1} << 24;
  static constexpr size_t max_key_size = size_t{1} << 16;
  static constexpr size_t max_string_size = size_t{1} << 30;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(size_t, json::error_code&) {
    keys_.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t, json::error_code&) { return true; }
  bool on_key_part(string_view part, size_t, json::error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(string_view part, size_t, json::error_code& error) {
    key_.append(part.data(), part.size());
    if (!keys_.back().insert(key_).second) {
      repeated_ = true;
      error = json::error::exception;
      return false;
    }
    key_.clear();
    return true;
  }
  bool on_string_part(string_view, size_t, json::error_code&) { return true; }
  bool on_string(string_view, size_t, json::error_code&) { return true; }
  bool on_number_part(string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, string_view, json::error_code&) { return true; }
  bool on_double(double, string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(string_view, json::error_code&) { return true; }
  bool on_comment(string_view, json::error_code&) { return true; }

  bool repeated() const { return repeated_; }
  const std::string& key() const { return key_; }

 private:
  std::vector<absl::flat_hash_set<std::string>> keys_;
  std::string key_;
  bool repeated_ = false;
};

// Fields of requests are short; what is longer is not repeated back.
constexpr size_t kMaxQuotedKeyBytes = 64;

}  // namespace

absl::StatusOr<json::value> ParseStrictJson(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;

  json::basic_parser<KeyChecker> checker(options);
  json::error_code error;
  const size_t consumed = checker.write_some(false, text.data(), text.size(), error);
  if (checker.handler().repeated()) {
    const std::string key = checker.handler().key().substr(0, kMaxQuotedKeyBytes);
    return InvalidField(key, absl::StrFormat("the JSON object has \"%s\" twice", key));
  }
  if (!error && consumed < text.size()) error = json::error::extra_data;
  if (!error && text.empty()) error = json::error::incomplete;
  if (error == json::error::too_deep) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the JSON is nested deeper than %d", kMaxJsonDepth));
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the body is not JSON: %s at byte %d", error.message(), consumed));
  }
  json::value value = json::parse(string_view(text.data(), text.size()), error, {}, options);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("the body is not JSON: ", error.message()));
  }
  return value;
}

// Each but the first comes behind one of "[{,:".
int64_t MostJsonValues(std::string_view text) {
  int64_t count = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;  // What is escaped ends no string.
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      count += text[i] == '[' || text[i] == '{' || text[i] == ',' || text[i] == ':';
    }
  }
  return count;
}

}  // namespace tandem
