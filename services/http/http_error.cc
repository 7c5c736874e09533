#include "services/http/http_error.h"

#include <algorithm>

#include "runtime/base/log.h"

namespace tandem {
namespace {

std::string_view TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
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

// Null where it is empty.
void AppendString(std::string_view text, std::string* out) {
  if (text.empty()) {
    *out += "null";
  } else {
    AppendJsonString(text, out);
  }
}

}  // namespace

std::string ErrorJson(int http_status, std::string_view message, std::string_view code,
                      std::string_view param) {
  std::string out = "{\"error\":{\"message\":";
  AppendJsonString(message, &out);
  out += ",\"type\":";
  AppendJsonString(TypeOf(http_status), &out);
  out += ",\"param\":";
  AppendString(param, &out);
  out += ",\"code\":";
  AppendString(code, &out);
  out += "}}";
  return out;
}

std::string Shown(std::string_view text) {
  std::string out(text.substr(0, 100));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < 32 || c > 126; }, '?');
  return out;
}

std::string NoSuchRoute(std::string_view path) { return "no such route: \"" + Shown(path) + "\""; }

}  // namespace tandem
