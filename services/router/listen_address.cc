#include "services/router/listen_address.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/ip_address.h"

namespace tandem {
namespace {

absl::Status Malformed(std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", std::string(text), "\" is not an address such as 127.0.0.1:8000 or [::1]:8000"));
}

}  // namespace

std::string ListenAddress::ToString() const {
  return ip.find(':') == std::string::npos ? absl::StrCat(ip, ":", port)
                                           : absl::StrCat("[", ip, "]:", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text, bool allow_public) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Malformed(text);
  ListenAddress address;
  const std::string_view port = text.substr(colon + 1);
  if (!absl::SimpleAtoi(absl::string_view(port.data(), port.size()), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return Malformed(text);
  }
  const std::string name(text.substr(0, colon));
  const std::string host = name == "localhost" ? "127.0.0.1" : WithoutBrackets(name);
  if (!IsIpAddress(host)) return Malformed(text);
  if (!IsLoopback(host) && !allow_public) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text),
                     "\" is not a loopback address, and there is neither TLS nor a key "
                     "to protect it; --insecure-public-listen allows it all the same"));
  }
  address.ip = host;
  return address;
}

}  // namespace tandem
