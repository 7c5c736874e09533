// The body of an answer that refuses a request, in OpenAI's form, and what such answers repeat.

#ifndef TANDEM_SERVICES_HTTP_HTTP_ERROR_H_
#define TANDEM_SERVICES_HTTP_HTTP_ERROR_H_

#include <string>
#include <string_view>

namespace tandem {

// {"error": {"message", "type", "param", "code"}}; the last two are null where they are empty.
std::string ErrorJson(int http_status, std::string_view message, std::string_view code = "",
                      std::string_view param = "");

// What a client said, in an error: short and printable.
std::string Shown(std::string_view text);
// Names the path that nothing here answers at.
std::string NoSuchRoute(std::string_view path);

}  // namespace tandem

#endif  // TANDEM_SERVICES_HTTP_HTTP_ERROR_H_
