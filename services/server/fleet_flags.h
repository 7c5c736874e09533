// How a process belongs to its fleet: the flags that tandem-router and tandem-worker have in
// common.

#ifndef TANDEM_SERVICES_SERVER_FLEET_FLAGS_H_
#define TANDEM_SERVICES_SERVER_FLEET_FLAGS_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/base/flags.h"
#include "runtime/base/fleet_secret.h"
#include "services/server/fleet_tls.h"

namespace tandem {

struct FleetFlags {
  std::string secret_file;
  FleetTlsFlags tls;

  // Into this object, which outlives `flags`.
  void Declare(FlagSet* flags);
  // The secret. Errors of FleetTlsFlags::Check and FleetSecret::Read.
  absl::StatusOr<FleetSecret> Open() const;
  // Logs who is believed without having proven anything; `stranger`: what he may do then.
  void WarnOfStrangers(const FleetSecret& secret, std::string_view stranger) const;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_FLEET_FLAGS_H_
