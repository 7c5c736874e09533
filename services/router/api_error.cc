#include "services/router/api_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "runtime/base/log.h"

namespace tandem {
namespace {

constexpr char kFieldPayload[] = "tandem/field";
constexpr char kCodePayload[] = "tandem/code";

std::string PayloadOf(const absl::Status& status, const char* name) {
  const absl::optional<absl::Cord> payload = status.GetPayload(name);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::string_view View(std::string_view s) { return absl::string_view(s.data(), s.size()); }

std::string_view TypeOf(int http_status) {
  switch (http_status) {
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 499:
      return "cancelled_error";
    case 500:
      return "server_error";
    case 503:
      return "service_unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return "invalid_request_error";
  }
}

std::string Render(int http_status, std::string_view message, std::string_view field,
                   std::string_view code) {
  std::string out = "{\"error\":{\"message\":";
  AppendJsonString(message, &out);
  out += ",\"type\":";
  AppendJsonString(TypeOf(http_status), &out);
  out += ",\"param\":";
  if (field.empty()) {
    out += "null";
  } else {
    AppendJsonString(field, &out);
  }
  out += ",\"code\":";
  if (code.empty()) {
    out += "null";
  } else {
    AppendJsonString(code, &out);
  }
  out += "}}";
  return out;
}

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
  return Render(HttpStatusOf(status), std::string_view(message.data(), message.size()),
                FieldOf(status), ApiCodeOf(status));
}

std::string ErrorJson(int http_status, std::string_view message, std::string_view code) {
  return Render(http_status, message, "", code);
}

}  // namespace tandem
