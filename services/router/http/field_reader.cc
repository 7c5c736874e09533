#include "services/router/http/field_reader.h"

#include <boost/json.hpp>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/number_text.h"
#include "runtime/base/status_macros.h"
#include "services/router/api_error.h"

namespace tandem {

namespace json = boost::json;

std::string_view JsonKind(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "a list";
    case json::kind::object:
      return "an object";
  }
  return "unknown";
}

absl::Status WrongType(std::string_view field, std::string_view wanted, const json::value& value) {
  return InvalidField(field, absl::StrCat(std::string(field), " must be ", std::string(wanted),
                                          ", not ", std::string(JsonKind(value))));
}

absl::Status WrongItem(std::string_view field, std::string_view name, std::string_view wanted,
                       const json::value& value) {
  return WithField(WrongType(name, wanted, value), field);
}

absl::StatusOr<int64_t> JsonInteger(const json::value& value, std::string_view field) {
  if (value.is_int64()) return value.get_int64();
  // Exactly representable bounds of int64.
  constexpr double kLow = -9223372036854775808.0;
  constexpr double kHigh = 9223372036854775808.0;
  if (value.is_double()) {
    const double number = value.get_double();
    if (number >= kLow && number < kHigh && std::trunc(number) == number) {
      return static_cast<int64_t>(number);
    }
    return InvalidField(field, absl::StrFormat("%s is %s, must be an integer of 64 bits",
                                               std::string(field), NumberText(number)));
  }
  if (value.is_uint64()) {
    return InvalidField(field, absl::StrFormat("%s is %d, must be an integer of 64 bits",
                                               std::string(field), value.get_uint64()));
  }
  return WrongType(field, "an integer", value);
}

const json::value* FieldReader::Find(std::string_view field) const {
  const json::value* value = object_.if_contains(json::string_view(field.data(), field.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

absl::Status FieldReader::Read(std::string_view field, bool* out) const {
  const json::value* value = Find(field);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_bool()) return WrongType(Name(field), "a boolean", *value);
  *out = value->get_bool();
  return absl::OkStatus();
}

absl::Status FieldReader::Read(std::string_view field, int64_t* out) const {
  const json::value* value = Find(field);
  if (value == nullptr) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(*out, JsonInteger(*value, Name(field)));
  return absl::OkStatus();
}

absl::Status FieldReader::Read(std::string_view field, std::string* out) const {
  const json::value* value = Find(field);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return WrongType(Name(field), "a string", *value);
  const json::string& text = value->get_string();
  out->assign(text.data(), text.size());
  return absl::OkStatus();
}

absl::Status FieldReader::Read(std::string_view field, std::optional<std::string>* out) const {
  if (Find(field) == nullptr) return absl::OkStatus();
  return Read(field, &out->emplace());
}

absl::Status FieldReader::Read(std::string_view field, std::optional<bool>* out) const {
  if (Find(field) == nullptr) return absl::OkStatus();
  bool value = false;
  TANDEM_RETURN_IF_ERROR(Read(field, &value));
  *out = value;
  return absl::OkStatus();
}

absl::Status FieldReader::Read(std::string_view field, std::optional<int64_t>* out) const {
  if (Find(field) == nullptr) return absl::OkStatus();
  int64_t value = 0;
  TANDEM_RETURN_IF_ERROR(Read(field, &value));
  *out = value;
  return absl::OkStatus();
}

absl::Status FieldReader::Read(std::string_view field, std::optional<double>* out) const {
  const json::value* value = Find(field);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return WrongType(Name(field), "a number", *value);
  *out = value->to_number<double>();
  return absl::OkStatus();
}

absl::Status FieldReader::Read(std::string_view field, std::vector<int64_t>* out) const {
  const json::value* value = Find(field);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_array()) return WrongType(Name(field), "a list of integers", *value);
  out->reserve(value->get_array().size());
  for (size_t i = 0; i < value->get_array().size(); ++i) {
    const absl::StatusOr<int64_t> item =
        JsonInteger(value->get_array()[i], absl::StrCat(Name(field), "[", i, "]"));
    if (!item.ok()) return WithField(item.status(), Name(field));
    out->push_back(*item);
  }
  return absl::OkStatus();
}

absl::Status FieldReader::ReadStrings(std::string_view field, std::vector<std::string>* out) const {
  const json::value* value = Find(field);
  if (value == nullptr) return absl::OkStatus();
  if (value->is_string()) {
    out->emplace_back(value->get_string().data(), value->get_string().size());
    return absl::OkStatus();
  }
  if (!value->is_array()) return WrongType(Name(field), "a string or a list of strings", *value);
  for (size_t i = 0; i < value->get_array().size(); ++i) {
    const json::value& item = value->get_array()[i];
    if (!item.is_string()) {
      return WrongItem(Name(field), absl::StrCat(Name(field), "[", i, "]"), "a string", item);
    }
    out->emplace_back(item.get_string().data(), item.get_string().size());
  }
  return absl::OkStatus();
}

}  // namespace tandem
