#include "services/server/listen_address.h"

#include "absl/strings/str_cat.h"
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

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text, std::string_view missing) {
  const std::optional<HostPort> parts = ParseHostPort(text);
  if (!parts.has_value()) return Malformed(text);
  const std::string host = parts->host == "localhost" ? "127.0.0.1" : WithoutBrackets(parts->host);
  if (!IsIpAddress(host)) return Malformed(text);
  if (!IsLoopback(host) && !missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", std::string(text), "\" is not a loopback address: ", std::string(missing),
        ", or --insecure-public-listen"));
  }
  return ListenAddress{.ip = host, .port = parts->port};
}

absl::StatusOr<std::optional<ListenAddress>> ParseAdminAddress(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const absl::StatusOr<ListenAddress> address = ParseListenAddress(text, /*missing=*/"");
  if (address.ok()) return *address;
  return absl::InvalidArgumentError(absl::StrCat("--admin: ", address.status().message()));
}

}  // namespace tandem
