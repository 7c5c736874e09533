// Where a listener binds. Loopback unless the operator insists: there is no TLS.

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
// these, or is not loopback and `allow_public` is false.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text, bool allow_public);
// Of --admin, which is named in errors; nothing if it is empty.
absl::StatusOr<std::optional<ListenAddress>> ParseAdminAddress(std::string_view text,
                                                               bool allow_public);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_LISTEN_ADDRESS_H_
