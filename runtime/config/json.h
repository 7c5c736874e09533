// JSON files of a model folder: parsed with limits, read field by field with messages that name
// file, field and limit. The only place of this folder that knows Boost.JSON's parser.

#ifndef TANDEM_RUNTIME_CONFIG_JSON_H_
#define TANDEM_RUNTIME_CONFIG_JSON_H_

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

struct JsonLimits {
  size_t max_bytes = size_t{16} << 20;
  size_t max_depth = 16;
  bool refuse_duplicate_keys = false;  // Otherwise the last one counts, as in Python.
};

// The limits of config.json and its like.
inline constexpr JsonLimits kConfigLimits{.max_bytes = size_t{1} << 20, .max_depth = 16};

// An object parsed from `text`. `what` names the document in messages ("config.json").
// InvalidArgument: too large, too deep, not JSON, not an object, a duplicate key.
absl::StatusOr<boost::json::object> ParseJsonObject(std::string_view text, const std::string& what,
                                                    const JsonLimits& limits);

// The first key that some object of `text` has twice, as far as that is JSON of at most that depth.
std::optional<std::string> RepeatedJsonKey(std::string_view text, size_t max_depth);

// Reads typed fields of one object. A field that is absent or null counts as not there.
class JsonFields {
 public:
  // `object` outlives this. `what` is the prefix of messages.
  JsonFields(const boost::json::object& object, std::string what)
      : object_(object), what_(std::move(what)) {}

  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  const boost::json::value* Find(std::string_view name) const;  // Null if absent or null.
  bool IsNull(std::string_view name) const;                     // There, and null.
  const std::string& what() const { return what_; }

  // InvalidArgument if the field is missing, of another type, or outside [low, high].
  absl::StatusOr<int64_t> Integer(std::string_view name, int64_t low, int64_t high) const;
  absl::StatusOr<int64_t> IntegerOr(std::string_view name, int64_t low, int64_t high,
                                    int64_t fallback) const;
  absl::StatusOr<double> Number(std::string_view name, double low, double high) const;
  absl::StatusOr<double> NumberOr(std::string_view name, double low, double high,
                                  double fallback) const;
  absl::StatusOr<bool> BoolOr(std::string_view name, bool fallback) const;
  absl::StatusOr<std::string> String(std::string_view name) const;
  absl::StatusOr<std::string> StringOr(std::string_view name, std::string_view fallback) const;
  // Null if absent; InvalidArgument if it is no object.
  absl::StatusOr<const boost::json::object*> ObjectOrNull(std::string_view name) const;

  // "config.json: hidden_size is -3, want 1 to 65536", for checks of the caller's own.
  absl::Status Wrong(std::string_view name, std::string_view complaint) const;

 private:
  const boost::json::object& object_;
  const std::string what_;
};

// At most 60 characters of a value as text, for messages.
std::string ShortJson(const boost::json::value& value);

// The value as an integer, also when written as 2.0 or 2e3; nothing if it is none or does not fit.
std::optional<int64_t> ExactInteger(const boost::json::value& value);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_CONFIG_JSON_H_
