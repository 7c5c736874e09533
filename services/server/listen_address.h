// Where a listener binds: loopback, unless what is said there is protected or the operator insists.

#ifndef TANDEM_SERVICES_SERVER_LISTEN_ADDRESS_H_
#define TANDEM_SERVICES_SERVER_LISTEN_ADDRESS_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tandem {

struct ListenAddress {
  std::string ip;  // "127.0.0.1", "::1"
  int port = 0;    // 0: any free one.

  std::string ToString() const;  // "127.0.0.1:8000", "[::1]:8000"
};

// "127.0.0.1:8000", "[::1]:0", "localhost:8000", "0.0.0.0:80". InvalidArgument if it is none of
// these, or is not loopback and something is missing for that: `missing` says what, as in "it needs
// --tls-cert", or is empty.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text, std::string_view missing);
// The value of --admin, named so in errors; nothing if it is empty. Any address will do: who is
// there sees probes and metrics, and no word of a client's.
absl::StatusOr<std::optional<ListenAddress>> ParseAdminAddress(std::string_view text);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_LISTEN_ADDRESS_H_
