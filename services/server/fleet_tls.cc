#include "services/server/fleet_tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <ctime>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "services/server/peer_trust.h"
#include "services/server/told_times.h"

namespace tandem {
namespace {

constexpr size_t kMaxShown = 100;  // OpenSSL's depth.

// As its certificate has it.
std::string HostOf(const std::string& target) {
  const std::optional<HostPort> parsed = ParseHostPort(target);
  std::string host = parsed.has_value() ? WithoutBrackets(parsed->host) : "localhost";  // unix:
  if (host.ends_with('.')) host.pop_back();
  return host;
}

// Whether the process that was dialled is one of the fleet. Any thread.
class Verifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  Verifier(std::string target, std::string name, std::shared_ptr<SSL_CTX> believer)
      : target_(std::move(target)), name_(std::move(name)), believer_(std::move(believer)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*done*/, grpc::Status* result) override {
    const grpc::string_ref shown = request->peer_cert_full_chain();
    const absl::Status judged = Judge(std::string(shown.data(), shown.size()));
    if (!judged.ok()) {
      *result = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(judged.message()));
      Tell(*result);
    }
    return true;  // At once.
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  absl::Status Judge(const std::string& shown) const {
    TANDEM_ASSIGN_OR_RETURN(const Certificates chain,
                            ReadCertificates("its certificate", shown, kMaxShown, "certificates"));
    return JudgeChain(chain, believer_.get(), ShownAs::kServer, name_, std::time(nullptr));
  }
  // The 1st time, the 2nd, the 4th...
  void Tell(const grpc::Status& why) const {
    static auto* const told = new ToldTimes;
    const auto times = told->Happened(absl::StrCat(target_, " ", why.error_message()));
    if (!times.has_value()) return;
    LogWarning(
        "the certificate of who was dialled is refused",
        {{"address", target_}, {"wanted", name_}, {"why", why.error_message()}, {"times", *times}});
  }

  const std::string target_, name_;
  const std::shared_ptr<SSL_CTX> believer_;
};

}  // namespace

void FleetTlsFlags::Declare(FlagSet* flags) {
  flags->Add("fleet-tls-cert", &certificate, "FILE",
             "PEM certificate, and chain, that this process shows to the fleet's others; with the "
             "next two all that routers and workers say to each other is TLS, but for ucx");
  flags->Add("fleet-tls-key", &key, "FILE", "its PEM key");
  flags->Add("fleet-tls-ca", &authorities, "FILE",
             "PEM certificates of those who sign the fleet's certificates");
  flags->Add(
      "fleet-tls-name", &name, "NAME",
      "DNS name (or IP address) that is among the alternative names of all routers' and workers' "
      "certificates, as it is: no wildcard stands for it; empty: of each worker the host in its "
      "address, and whoever connects may be for anything");
}

absl::Status FleetTlsFlags::Check() const {
  const bool all = !certificate.empty() && !key.empty() && !authorities.empty();
  const bool none = certificate.empty() && key.empty() && authorities.empty() && name.empty();
  if (!all && !none) {
    return absl::InvalidArgumentError(
        "--fleet-tls-cert, --fleet-tls-key and --fleet-tls-ca: name all three or none, and "
        "--fleet-tls-name only with them");
  }
  const absl::Status named = name.empty() ? absl::OkStatus() : CheckPeerName(name);
  if (named.ok()) return named;
  return absl::InvalidArgumentError(
      absl::StrCat("--fleet-tls-name: ", std::string(named.message())));
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
                                             .peer_name = flags.name,
                                             .among_peers = true}));
  return tls;
}

std::shared_ptr<grpc::ChannelCredentials> FleetTls::CredentialsFor(
    const std::string& target) const {
  using grpc::experimental::StaticDataCertificateProvider;
  const std::shared_ptr<const TlsIdentity::Pems> pems = identity_->pems();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<StaticDataCertificateProvider>(
      pems->client_authorities,
      std::vector<grpc::experimental::IdentityKeyCertPair>{
          {.private_key = pems->key, .certificate_chain = pems->certificate}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  // gRPC would look for the name where we do not, and say nothing of why it refuses.
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(Verifier::Create<Verifier>(
      target, name_.empty() ? HostOf(target) : name_, identity_->Context()));
  return grpc::experimental::TlsCredentials(options);
}

void FleetTls::Configure(grpc::ChannelArguments* arguments) const {
  if (!name_.empty()) arguments->SetSslTargetNameOverride(name_);
}

std::string WhyNotReached(const absl::Status& why, const FleetTls* tls) {
  std::string text(why.message());
  if (tls == nullptr) return text;
  // TLS 1.3 tells a client that it is refused after the client's last word: what gRPC then meets
  // depends on whether it reads or writes first.
  for (const char* met : {"Endpoint read failed", "Connection reset by peer", "Broken pipe"}) {
    if (text.find(met) == text.npos) continue;
    return text + ": it may refuse this process's certificate, as its log would say";
  }
  return text;
}

}  // namespace tandem
