// What a client is told when its request is refused: a Status that also names the field at fault
// and OpenAI's error code. Both front ends turn the same Status into their own form.

#ifndef TANDEM_SERVICES_ROUTER_API_ERROR_H_
#define TANDEM_SERVICES_ROUTER_API_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "services/http/http_error.h"

namespace tandem {

// OpenAI's `code` of errors that clients tell apart.
inline constexpr std::string_view kContextLengthExceeded = "context_length_exceeded";
inline constexpr std::string_view kModelNotFound = "model_not_found";

// InvalidArgument at `field` ("temperature", "messages[2].content").
absl::Status InvalidField(std::string_view field, std::string_view message);

absl::Status WithField(absl::Status status, std::string_view field);
absl::Status WithApiCode(absl::Status status, std::string_view code);

// Empty where none was set.
std::string FieldOf(const absl::Status& status);
std::string ApiCodeOf(const absl::Status& status);

// 400, 404, 413, 429, 499, 500, 503 or 504.
int HttpStatusOf(const absl::Status& status);

// {"error": {"message", "type", "param", "code"}}; `param` and `code` are null where none was set.
std::string ErrorJson(const absl::Status& status);

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_API_ERROR_H_
