#include "services/router/listen_address.h"

#include <arpa/inet.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

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
  std::string host(text.substr(0, colon));
  if (host == "localhost") host = "127.0.0.1";
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  bool loopback = false;
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    loopback = (ntohl(v4.s_addr) >> 24) == 127;
  } else if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    loopback = IN6_IS_ADDR_LOOPBACK(&v6);
  } else {
    return Malformed(text);
  }
  if (!loopback && !allow_public) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text),
                     "\" is not a loopback address, and there is neither TLS nor a key "
                     "to protect it; --insecure-public-listen allows it all the same"));
  }
  address.ip = host;
  return address;
}

}  // namespace tandem
