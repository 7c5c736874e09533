#include "services/server/fleet_tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>
#include <vector>

#include "runtime/base/status_macros.h"

namespace tandem {

void FleetTlsFlags::Declare(FlagSet* flags) {
  flags->Add("fleet-tls-cert", &certificate, "FILE",
             "PEM certificate, and chain, that this process shows to the fleet's others; with the "
             "next two all that routers and workers say to each other is TLS, but for ucx");
  flags->Add("fleet-tls-key", &key, "FILE", "its PEM key");
  flags->Add("fleet-tls-ca", &authorities, "FILE",
             "PEM certificates of those who sign the fleet's certificates");
  flags->Add(
      "fleet-tls-name", &name, "NAME",
      "what the certificates of all routers and workers are for; empty: of each worker the host in "
      "its address, and whoever connects may be for anything");
}

absl::Status FleetTlsFlags::Check() const {
  const bool all = !certificate.empty() && !key.empty() && !authorities.empty();
  const bool none = certificate.empty() && key.empty() && authorities.empty() && name.empty();
  if (all || none) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--fleet-tls-cert, --fleet-tls-key and --fleet-tls-ca: name all three or none, and "
      "--fleet-tls-name only with them");
}

absl::StatusOr<std::unique_ptr<FleetTls>> FleetTls::Open(const FleetTlsFlags& flags) {
  TANDEM_RETURN_IF_ERROR(flags.Check());
  if (!flags.configured()) return nullptr;
  std::unique_ptr<FleetTls> tls(new FleetTls);
  tls->name_ = flags.name;
  TANDEM_ASSIGN_OR_RETURN(tls->identity_,
                          TlsIdentity::Open({.certificate = flags.certificate,
                                             .key = flags.key,
                                             .client_authorities = flags.authorities,
                                             .client_name = flags.name}));
  return tls;
}

std::shared_ptr<grpc::ChannelCredentials> FleetTls::credentials() const {
  using grpc::experimental::StaticDataCertificateProvider;
  const std::shared_ptr<const TlsIdentity::Pems> pems = identity_->pems();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<StaticDataCertificateProvider>(
      pems->client_authorities,
      std::vector<grpc::experimental::IdentityKeyCertPair>{
          {.private_key = pems->key, .certificate_chain = pems->certificate}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

void FleetTls::Configure(grpc::ChannelArguments* arguments) const {
  if (!name_.empty()) arguments->SetSslTargetNameOverride(name_);
}

}  // namespace tandem
