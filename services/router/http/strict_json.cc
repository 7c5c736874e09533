#include "services/router/http/strict_json.h"

#include <boost/json/parser.hpp>
#include <string>

#include "absl/strings/str_format.h"
#include "runtime/config/json.h"
#include "services/router/api_error.h"
#include "services/router/api_limits.h"

namespace tandem {
namespace {

namespace json = boost::json;

// Fields of requests are short; what is longer is not repeated back.
constexpr size_t kMaxQuotedKeyBytes = 64;

}  // namespace

absl::StatusOr<json::value> ParseStrictJson(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;

  if (const auto repeated = RepeatedJsonKey(text, kMaxJsonDepth)) {
    const std::string key = repeated->substr(0, kMaxQuotedKeyBytes);
    return InvalidField(key, absl::StrFormat("the JSON object has \"%s\" twice", key));
  }
  json::parser parser({}, options);
  json::error_code error;
  const size_t consumed = parser.write(text.data(), text.size(), error);
  if (error == json::error::too_deep) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the JSON is nested deeper than %d", kMaxJsonDepth));
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the body is not JSON: %s at byte %d", error.message(), consumed));
  }
  return parser.release();
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
