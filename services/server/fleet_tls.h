// TLS between the processes of a fleet: each shows its certificate to the other, and believes
// whoever shows one that the fleet's authorities signed, for the fleet's name (peer_trust.h).

#ifndef TANDEM_SERVICES_SERVER_FLEET_TLS_H_
#define TANDEM_SERVICES_SERVER_FLEET_TLS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/flags.h"
#include "services/server/tls_identity.h"

namespace tandem {

// The flags of TLS inside the fleet; routers and workers have the same.
struct FleetTlsFlags {
  std::string certificate, key, authorities;
  std::string name;

  // Into this object, which outlives `flags`.
  void Declare(FlagSet* flags);
  // InvalidArgument unless all three files are named, or none, and the name is one.
  absl::Status Check() const;
  bool configured() const { return !certificate.empty(); }
};

class FleetTls {
 public:
  // Null if none is configured. Follows the files from now on. Errors of Check and
  // TlsIdentity::Open.
  static absl::StatusOr<std::unique_ptr<FleetTls>> Open(const FleetTlsFlags& flags);

  // What listeners show; they ask everybody for a certificate.
  TlsIdentity* identity() const { return identity_.get(); }

  // What a channel to the process at `target` is made with now. It holds what TlsIdentity has
  // accepted, whatever is in the files meanwhile: once num_changes() is another one, what is
  // dialled again needs a new channel. Where the other end's certificate is refused the log says
  // so.
  std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::string& target) const;
  uint64_t num_changes() const { return identity_->num_changes(); }
  void Configure(grpc::ChannelArguments* arguments) const;

 private:
  FleetTls() = default;

  std::unique_ptr<TlsIdentity> identity_;
  std::string name_;
};

// Why what was dialled, through `tls` unless that is null, could not be reached: gRPC's words, and
// what they mean where the other end has refused this one's certificate.
std::string WhyNotReached(const absl::Status& why, const FleetTls* tls);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_FLEET_TLS_H_
