// Bodies of /v1/completions and /v1/chat/completions as GenerateRequests.
//
// Fields follow OpenAI's API and vLLM's additions. null is the same as absent. Fields that are
// known but not supported are accepted where their value asks for nothing (repetition_penalty 1,
// tools []), and are otherwise InvalidArgument naming the field; unknown fields are ignored.
// Ranges are CheckRequest's business. Any thread.

#ifndef TANDEM_SERVICES_ROUTER_HTTP_JSON_REQUEST_H_
#define TANDEM_SERVICES_ROUTER_HTTP_JSON_REQUEST_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "services/router/generate_request.h"

namespace tandem {

absl::StatusOr<GenerateRequest> ParseCompletionRequest(std::string_view body);
absl::StatusOr<GenerateRequest> ParseChatRequest(std::string_view body);

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_JSON_REQUEST_H_
