// Typed access to the fields of a JSON object. null is the same as absent; a wrong type is
// InvalidArgument naming the field.

#ifndef TANDEM_SERVICES_ROUTER_HTTP_FIELD_READER_H_
#define TANDEM_SERVICES_ROUTER_HTTP_FIELD_READER_H_

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// The kind of a JSON value, for messages: "a string", "an object".
std::string_view JsonKind(const boost::json::value& value);

// "temperature must be a number, not a string".
absl::Status WrongType(std::string_view field, std::string_view wanted,
                       const boost::json::value& value);

// The same of an item, `name`, of the list `field`: the error's field is the list.
absl::Status WrongItem(std::string_view field, std::string_view name, std::string_view wanted,
                       const boost::json::value& value);

// Integers may be written 10 or 10.0; anything else is an error.
absl::StatusOr<int64_t> JsonInteger(const boost::json::value& value, std::string_view field);

class FieldReader {
 public:
  // `prefix` is put before names in messages ("stream_options."). `object` outlives this.
  explicit FieldReader(const boost::json::object& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Null if absent or null.
  const boost::json::value* Find(std::string_view field) const;

  // Each leaves `out` alone where the field is absent.
  absl::Status Read(std::string_view field, bool* out) const;
  absl::Status Read(std::string_view field, int64_t* out) const;
  absl::Status Read(std::string_view field, std::string* out) const;
  absl::Status Read(std::string_view field, std::optional<std::string>* out) const;
  absl::Status Read(std::string_view field, std::optional<bool>* out) const;
  absl::Status Read(std::string_view field, std::optional<int64_t>* out) const;
  absl::Status Read(std::string_view field, std::optional<double>* out) const;
  absl::Status Read(std::string_view field, std::vector<int64_t>* out) const;
  // A string or a list of strings.
  absl::Status ReadStrings(std::string_view field, std::vector<std::string>* out) const;

  std::string Name(std::string_view field) const { return prefix_ + std::string(field); }

 private:
  const boost::json::object& object_;
  const std::string prefix_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_FIELD_READER_H_
