#include "runtime/config/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parser.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/number_text.h"

namespace tandem {
namespace {

namespace json = boost::json;

// Looks only at keys, and stops at the first that an object has twice.
struct KeyHandler {
  static constexpr size_t max_object_size = size_t(-1);
  static constexpr size_t max_array_size = size_t(-1);
  static constexpr size_t max_key_size = size_t{1} << 16;
  static constexpr size_t max_string_size = size_t(-1);

  std::vector<absl::flat_hash_set<std::string>> open;
  std::string key;
  std::optional<std::string> repeated;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    open.emplace_back();
    return true;
  }
  bool on_object_end(size_t, json::error_code&) {
    open.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view part, size_t, json::error_code&) {
    key.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, json::error_code& error) {
    key.append(part.data(), part.size());
    if (!open.back().insert(key).second) {
      repeated = key;
      error = json::error::exception;  // Any error stops the parser.
      return false;
    }
    key.clear();
    return true;
  }
  bool on_string_part(json::string_view, size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

}  // namespace

std::optional<std::string> RepeatedJsonKey(std::string_view text, size_t max_depth) {
  json::parse_options options;
  options.max_depth = max_depth;
  json::basic_parser<KeyHandler> parser(options);
  json::error_code error;
  parser.write_some(false, text.data(), text.size(), error);
  return std::move(parser.handler().repeated);
}

absl::StatusOr<json::object> ParseJsonObject(std::string_view text, const std::string& what,
                                             const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, at most %d are read", what, text.size(), limits.max_bytes));
  }
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::error_code error;
  json::parser parser(json::storage_ptr(), options);
  const size_t consumed = parser.write(text.data(), text.size(), error);
  if (error == json::error::too_deep) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: nested deeper than %d levels", what, limits.max_depth));
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: not JSON at byte %d: %s", what, consumed, error.message()));
  }
  if (limits.refuse_duplicate_keys) {
    if (const auto repeated = RepeatedJsonKey(text, limits.max_depth)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: the name \"%s\" appears twice", what, repeated->substr(0, 100)));
    }
  }
  json::value value = parser.release();
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: holds %s, want an object", what, ShortJson(value)));
  }
  return std::move(value.get_object());
}

std::string ShortJson(const json::value& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  std::string text = json::serialize(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::optional<int64_t> ExactInteger(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double()) {
    const double number = value.get_double();
    if (std::abs(number) < 0x1p53 && number == std::floor(number)) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;  // A uint64 that is no int64 fits no size of ours.
}

const json::value* JsonFields::Find(std::string_view name) const {
  const json::value* value = object_.if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool JsonFields::IsNull(std::string_view name) const {
  const json::value* value = object_.if_contains(json::string_view(name.data(), name.size()));
  return value != nullptr && value->is_null();
}

absl::Status JsonFields::Wrong(std::string_view name, std::string_view complaint) const {
  return absl::InvalidArgumentError(
      absl::StrCat(what_, ": ", std::string(name), " ", std::string(complaint)));
}

absl::StatusOr<int64_t> JsonFields::Integer(std::string_view name, int64_t low,
                                            int64_t high) const {
  const json::value* value = Find(name);
  if (value == nullptr) return Wrong(name, "is missing");
  const std::optional<int64_t> number = ExactInteger(*value);
  if (!number || *number < low || *number > high) {
    return Wrong(name, absl::StrFormat("is %s, want an integer from %d to %d", ShortJson(*value),
                                       low, high));
  }
  return *number;
}

absl::StatusOr<int64_t> JsonFields::IntegerOr(std::string_view name, int64_t low, int64_t high,
                                              int64_t fallback) const {
  if (!Has(name)) return fallback;
  return Integer(name, low, high);
}

absl::StatusOr<double> JsonFields::Number(std::string_view name, double low, double high) const {
  const json::value* value = Find(name);
  if (value == nullptr) return Wrong(name, "is missing");
  double number = NAN;
  if (value->is_number()) number = value->to_number<double>();
  if (!(number >= low && number <= high)) {
    return Wrong(name, absl::StrFormat("is %s, want a number from %s to %s", ShortJson(*value),
                                       NumberText(low), NumberText(high)));
  }
  return number;
}

absl::StatusOr<double> JsonFields::NumberOr(std::string_view name, double low, double high,
                                            double fallback) const {
  if (!Has(name)) return fallback;
  return Number(name, low, high);
}

absl::StatusOr<bool> JsonFields::BoolOr(std::string_view name, bool fallback) const {
  const json::value* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) {
    return Wrong(name, absl::StrFormat("is %s, want true or false", ShortJson(*value)));
  }
  return value->get_bool();
}

absl::StatusOr<std::string> JsonFields::String(std::string_view name) const {
  const json::value* value = Find(name);
  if (value == nullptr) return Wrong(name, "is missing");
  if (!value->is_string()) {
    return Wrong(name, absl::StrFormat("is %s, want a string", ShortJson(*value)));
  }
  return std::string(value->get_string().data(), value->get_string().size());
}

absl::StatusOr<std::string> JsonFields::StringOr(std::string_view name,
                                                 std::string_view fallback) const {
  if (!Has(name)) return std::string(fallback);
  return String(name);
}

absl::StatusOr<const json::object*> JsonFields::ObjectOrNull(std::string_view name) const {
  const json::value* value = Find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) {
    return Wrong(name, absl::StrFormat("is %s, want an object", ShortJson(*value)));
  }
  return &value->get_object();
}

}  // namespace tandem
