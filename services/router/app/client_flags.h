// How clients are served: the flags that tandem-router and `tandem serve`, which hands them on,
// have in common.

#ifndef TANDEM_SERVICES_ROUTER_APP_CLIENT_FLAGS_H_
#define TANDEM_SERVICES_ROUTER_APP_CLIENT_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/flags.h"
#include "services/server/drain_time.h"
#include "services/server/listen_address.h"

namespace tandem {

struct ClientFlags {
  std::string http = "127.0.0.1:8000";
  std::string grpc = "127.0.0.1:9000";
  std::string admin;
  std::string disaggregate = "auto";
  std::string api_key_file;
  std::string tls_cert, tls_key, tls_client_ca;
  std::string allowed_hosts, cors_origins;  // Separated by commas.
  bool isolate_cache = false;
  bool insecure_public_listen = false;
  int32_t max_queued_requests = 4096;
  ByteSize memory_limit;  // For each process.
  int32_t drain_seconds = kRouterDrainSeconds;

  struct Addresses {
    ListenAddress http, grpc;
    std::optional<ListenAddress> admin;
  };

  // Into this object, which outlives `flags`.
  void Declare(FlagSet* flags);
  // InvalidArgument, with the flag's name, if one has a value that cannot be meant.
  absl::StatusOr<Addresses> Check() const;
  // As on a command line.
  std::vector<std::string> Arguments() const;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_APP_CLIENT_FLAGS_H_
