// What tandem-router is told on its command line.

#ifndef TANDEM_SERVICES_ROUTER_APP_ROUTER_FLAGS_H_
#define TANDEM_SERVICES_ROUTER_APP_ROUTER_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/flags.h"
#include "services/router/app/client_flags.h"
#include "services/router/app/router_app.h"
#include "services/server/fleet_flags.h"

namespace tandem {

struct RouterFlags {
  std::string model, served_model_name, workers, workers_dns, port_file;
  std::string name = "router";
  ClientFlags clients;
  FleetFlags fleet;
  double liveness_scale = 1;

  // Into this object, which outlives `flags`.
  void Declare(FlagSet* flags);
  // InvalidArgument, with the flag's name, if one is missing or has a value that cannot be meant.
  absl::StatusOr<RouterOptions> Options() const;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_APP_ROUTER_FLAGS_H_
