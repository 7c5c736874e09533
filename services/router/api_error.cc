#include "services/router/api_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tandem {
namespace {

constexpr char kFieldPayload[] = "tandem/field";
constexpr char kCodePayload[] = "tandem/code";

std::string PayloadOf(const absl::Status& status, const char* name) {
  const absl::optional<absl::Cord> payload = status.GetPayload(name);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::string_view View(std::string_view s) { return absl::string_view(s.data(), s.size()); }

}  // namespace

absl::Status InvalidField(std::string_view field, std::string_view message) {
  return WithField(absl::InvalidArgumentError(View(message)), field);
}

absl::Status WithField(absl::Status status, std::string_view field) {
  status.SetPayload(kFieldPayload, absl::Cord(View(field)));
  return status;
}

absl::Status WithApiCode(absl::Status status, std::string_view code) {
  status.SetPayload(kCodePayload, absl::Cord(View(code)));
  return status;
}

std::string FieldOf(const absl::Status& status) { return PayloadOf(status, kFieldPayload); }
std::string ApiCodeOf(const absl::Status& status) { return PayloadOf(status, kCodePayload); }

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string ErrorJson(const absl::Status& status) {
  const absl::string_view message = status.message();
  return ErrorJson(HttpStatusOf(status), std::string_view(message.data(), message.size()),
                   ApiCodeOf(status), FieldOf(status));
}

}  // namespace tandem
