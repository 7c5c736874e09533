#include "services/server/fleet_flags.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace tandem {

void FleetFlags::Declare(FlagSet* flags) {
  flags->Add("fleet-secret-file", &secret_file, "FILE", kFleetSecretFileHelp);
  tls.Declare(flags);
}

absl::StatusOr<FleetSecret> FleetFlags::Open() const {
  TANDEM_RETURN_IF_ERROR(tls.Check());
  return FleetSecret::Read(secret_file);
}

void FleetFlags::WarnOfStrangers(const FleetSecret& secret, std::string_view stranger) const {
  if (secret.configured()) return;
  if (!tls.configured()) {
    LogWarning(absl::StrCat("no fleet secret: ", std::string(stranger)));
  } else if (tls.name.empty()) {
    LogWarning(
        "no fleet secret and no --fleet-tls-name: whoever has a certificate of --fleet-tls-ca "
        "is one of the fleet");
  }
}

}  // namespace tandem
