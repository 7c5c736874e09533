#include "services/server/tls_identity.h"

#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "services/server/peer_trust.h"

namespace tandem {
namespace {

// The lifetime of the one that ends first.
TlsLifetime FirstToEnd(const Certificates& certificates) {
  TlsLifetime first;
  for (const auto& one : certificates) {
    const TlsLifetime lifetime = LifetimeOf(one.get());
    if (&one != &certificates.front() && lifetime.ends_s >= first.ends_s) continue;
    first = lifetime;
  }
  return first;
}

// By protocol, as the stream of the connection names it (socket_stream.cc).
int ChooseProtocol(SSL* tls, const unsigned char** chosen, unsigned char* size,
                   const unsigned char* offered, unsigned int offered_size, void* /*unused*/) {
  const std::string ours = static_cast<TlsHandshake*>(SSL_get_app_data(tls))->protocol;
  for (unsigned int i = 0; i < offered_size; i += 1 + offered[i]) {
    const std::string theirs(reinterpret_cast<const char*>(offered) + i + 1,
                             std::min<unsigned int>(offered[i], offered_size - i - 1));
    if (theirs != ours) continue;
    *chosen = offered + i + 1;
    *size = offered[i];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

int VerifyClient(X509_STORE_CTX* verified, void* /*unused*/) {
  const int result = X509_verify_cert(verified);
  if (result == 1) return result;
  const void* const tls =
      X509_STORE_CTX_get_ex_data(verified, SSL_get_ex_data_X509_STORE_CTX_idx());
  auto* const handshake =
      static_cast<TlsHandshake*>(SSL_get_app_data(static_cast<const SSL*>(tls)));
  handshake->presented = Describe(X509_STORE_CTX_get0_cert(verified));
  handshake->why_refused = WhyNotVerified(verified);
  handshake->why_code = X509_STORE_CTX_get_error(verified);
  return result;
}

std::shared_ptr<SSL_CTX> NewContext() {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                         SSL_OP_CIPHER_SERVER_PREFERENCE |
                                         SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  SSL_CTX_set_cert_verify_callback(context.get(), VerifyClient, nullptr);
  return context;
}

absl::Status TrustClientsOf(const Certificates& authorities, SSL_CTX* context) {
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  for (const auto& one : authorities) {
    if (X509_STORE_add_cert(store, one.get()) != 1 ||
        SSL_CTX_add_client_CA(context, one.get()) != 1) {
      return absl::InvalidArgumentError(LastTlsReason());
    }
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

struct Loaded {
  std::shared_ptr<SSL_CTX> context;
  Certificates chain, authorities;
};

absl::StatusOr<Loaded> Load(const TlsFiles& files, const FollowedFiles::Texts& texts) {
  Loaded loaded{.context = NewContext()};
  TANDEM_ASSIGN_OR_RETURN(loaded.chain, ReadCertificates(files.certificate, texts[0], kMaxTlsChain,
                                                         "certificates of a chain"));
  TANDEM_ASSIGN_OR_RETURN(const PrivateKey key, ReadPrivateKey(files.key, texts[1]));
  const Certificates& chain = loaded.chain;
  SSL_CTX* const context = loaded.context.get();
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(files.certificate, ": ", LastTlsReason()));
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) {
      return absl::InvalidArgumentError(absl::StrCat(files.certificate, ": ", LastTlsReason()));
    }
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(files.key,
                                                   ": not the key of the certificate in ",
                                                   files.certificate, ": ", LastTlsReason()));
  }
  if (!files.client_authorities.empty()) {
    TANDEM_ASSIGN_OR_RETURN(
        loaded.authorities,
        ReadCertificates(files.client_authorities, texts[2], kMaxTlsAuthorities, "authorities"));
    TANDEM_RETURN_IF_ERROR(TrustClientsOf(loaded.authorities, context));
  }
  AskForName(files.peer_name, context);
  return loaded;
}

int64_t BytesOf(const Certificates& chain) {
  int64_t bytes = 0;
  for (const auto& one : chain) bytes += i2d_X509(one.get(), nullptr);
  return bytes;
}

// What holds of a certificate whatever the time is.
absl::Status JudgeForm(const TlsFiles& files, const Loaded& loaded) {
  const int64_t bytes = BytesOf(loaded.chain);
  if (bytes > kMaxTlsChainBytes) {
    return absl::InvalidArgumentError(absl::StrCat(files.certificate, ": a chain of ", bytes,
                                                   " bytes, more than ", kMaxTlsChainBytes));
  }
  X509* const own = loaded.chain.front().get();
  if (X509_check_purpose(own, X509_PURPOSE_SSL_SERVER, 0) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(files.certificate, ": ", Describe(own), ", is not one for servers"));
}

// Whom clients believe nobody knows, but their clocks go as this one does.
absl::Status JudgeTime(const TlsFiles& files, const Loaded& loaded, int64_t now_s) {
  const X509* const own = loaded.chain.front().get();
  const TlsLifetime lifetime = LifetimeOf(own);
  const char* const why = lifetime.starts_s > now_s  ? "is not yet valid"
                          : lifetime.ends_s <= now_s ? "has expired"
                                                     : nullptr;
  if (why != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.certificate, ": ", Describe(own), ", ", why));
  }
  const auto valid = [now_s](const auto& one) { return LifetimeOf(one.get()).ends_s > now_s; };
  const Certificates& all = loaded.authorities;
  if (all.empty() || std::any_of(all.begin(), all.end(), valid)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(files.client_authorities, ": all ", all.size(),
                                                 " authorities have expired, the first is ",
                                                 Describe(all.front().get())));
}

// As peers of the fleet will.
absl::Status JudgeAsPeer(const TlsFiles& files, const Loaded& loaded, int64_t at_s) {
  for (const ShownAs shown_as : {ShownAs::kServer, ShownAs::kClient}) {
    const absl::Status judged =
        JudgeChain(loaded.chain, loaded.context.get(), shown_as, files.peer_name, at_s);
    if (judged.ok()) continue;
    const std::string wanted =
        files.peer_name.empty() ? "" : absl::StrCat(" for ", files.peer_name);
    return absl::InvalidArgumentError(absl::StrCat(
        files.certificate, ": nobody", wanted, " who believes ", files.client_authorities,
        " would believe it: ", std::string(judged.message())));
  }
  return absl::OkStatus();
}

std::vector<std::string> PathsOf(const TlsFiles& files) {
  std::vector<std::string> paths = {files.certificate, files.key};
  if (!files.client_authorities.empty()) paths.push_back(files.client_authorities);
  return paths;
}

}  // namespace

TlsIdentity::TlsIdentity(const TlsFiles& files)
    : files_(files), followed_(PathsOf(files), [this](const auto& texts) { return Take(texts); }) {}

absl::StatusOr<std::unique_ptr<TlsIdentity>> TlsIdentity::Open(const TlsFiles& files) {
  std::unique_ptr<TlsIdentity> identity(new TlsIdentity(files));
  identity->followed_.Look();
  TANDEM_RETURN_IF_ERROR(identity->first_);
  identity->followed_.Follow();
  return identity;
}

bool TlsIdentity::Take(const absl::StatusOr<FollowedFiles::Texts>& texts) {
  const int64_t now_s = std::time(nullptr);
  const bool first = Context() == nullptr;
  absl::StatusOr<Loaded> loaded =
      texts.ok() ? Load(files_, *texts) : absl::StatusOr<Loaded>(texts.status());
  absl::Status judged = loaded.status();
  if (judged.ok()) judged = JudgeForm(files_, *loaded);
  if (judged.ok() && files_.among_peers) {
    judged = JudgeAsPeer(files_, *loaded, now_s);
    // It loads its model first, and whoever issued the certificate may have a faster clock.
    if (!judged.ok() && first && JudgeAsPeer(files_, *loaded, now_s + kClockSkewS).ok()) {
      judged = absl::OkStatus();
    }
  }
  if (judged.ok() && !files_.among_peers) {
    judged = JudgeTime(files_, *loaded, now_s);
    if (!judged.ok() && first) {  // Some clients, and probes, do not look. Better than nothing.
      LogWarning("clients will refuse the certificate", {{"why", std::string(judged.message())}});
      judged = absl::OkStatus();
    }
  }
  if (!judged.ok()) {
    Refuse(std::string(judged.message()));
    return false;
  }
  const TlsLifetime lifetime = FirstToEnd(loaded->chain);
  // May be as it should: whoever knows another issuer of the same name does not need it.
  if (!files_.among_peers && now_s >= lifetime.ends_s &&
      LifetimeOf(loaded->chain.front().get()).ends_s > now_s) {
    LogWarning("a certificate behind the own one has expired: clients may refuse the chain",
               {{"file", files_.certificate}, {"expired_s_ago", now_s - lifetime.ends_s}});
  }
  const MutexLock lock(&mu_);
  why_refused_.clear();
  context_ = std::move(loaded->context);
  pems_ = std::make_shared<const Pems>(
      Pems{.certificate = (*texts)[0],
           .key = (*texts)[1],
           .client_authorities = has_authorities() ? (*texts)[2] : ""});
  lifetime_ = lifetime;
  if (has_authorities()) authorities_lifetime_ = FirstToEnd(loaded->authorities);
  num_changes_.fetch_add(1, std::memory_order_release);
  if (!first) {
    LogInfo("the certificate changes",
            {{"file", files_.certificate}, {"expires_in_s", lifetime.ends_s - now_s}});
  }
  return true;
}

void TlsIdentity::Refuse(const std::string& why) {
  const MutexLock lock(&mu_);
  if (context_ == nullptr) {
    first_ = absl::InvalidArgumentError(why);
  } else if (why != why_refused_) {
    LogWarning("the certificate stays as it is", {{"why", why}});
  }
  why_refused_ = why;
}

bool TlsIdentity::refused() const {
  const MutexLock lock(&mu_);
  return !why_refused_.empty();
}

std::shared_ptr<SSL_CTX> TlsIdentity::Context() const {
  const MutexLock lock(&mu_);
  return context_;
}

std::shared_ptr<const TlsIdentity::Pems> TlsIdentity::pems() const {
  const MutexLock lock(&mu_);
  return pems_;
}

TlsLifetime TlsIdentity::lifetime() const {
  const MutexLock lock(&mu_);
  return lifetime_;
}

TlsLifetime TlsIdentity::authorities_lifetime() const {
  const MutexLock lock(&mu_);
  return authorities_lifetime_;
}

}  // namespace tandem
