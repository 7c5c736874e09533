// The body of an answer that refuses a request, in OpenAI's form.

#ifndef TANDEM_SERVICES_HTTP_HTTP_ERROR_H_
#define TANDEM_SERVICES_HTTP_HTTP_ERROR_H_

#include <string>
#include <string_view>

namespace tandem {

// {"error": {"message", "type", "param", "code"}}; the last two are null where they are empty.
std::string ErrorJson(int http_status, std::string_view message, std::string_view code = "",
                      std::string_view param = "");

}  // namespace tandem

#endif  // TANDEM_SERVICES_HTTP_HTTP_ERROR_H_
