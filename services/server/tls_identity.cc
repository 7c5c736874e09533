#include "services/server/tls_identity.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr size_t kMaxCertificates = 1024;  // Of a file: those of all public authorities are 140.

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;
using Certificates = std::vector<Owned<X509>>;

Owned<BIO> Reader(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string LastReason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown" : reason;
}

absl::StatusOr<Certificates> ReadCertificates(const std::string& path, const std::string& pem) {
  Certificates out;
  const Owned<BIO> reader = Reader(pem);
  ERR_clear_error();
  while (Owned<X509> one{PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)}) {
    out.push_back(std::move(one));
    if (out.size() > kMaxCertificates) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": more than ", kMaxCertificates, " certificates"));
    }
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string why = LastReason();
  if (!at_end) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": certificate ", out.size() + 1, " cannot be read: ", why));
  }
  if (out.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": no PEM certificate"));
  return out;
}

absl::StatusOr<Owned<EVP_PKEY>> ReadKey(const std::string& path, const std::string& pem) {
  const Owned<BIO> reader = Reader(pem);
  // Nobody is there to type a password.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  ERR_clear_error();
  Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(reader.get(), nullptr, no_password, nullptr));
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no PEM private key without a password: ", LastReason()));
  }
  return key;
}

int64_t UnixSeconds(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

// Of the one that ends first.
TlsLifetime LifetimeOf(const Certificates& certificates) {
  TlsLifetime first;
  for (const Owned<X509>& one : certificates) {
    const int64_t ends_s = UnixSeconds(X509_get0_notAfter(one.get()));
    if (&one != &certificates.front() && ends_s >= first.ends_s) continue;
    first = {.starts_s = UnixSeconds(X509_get0_notBefore(one.get())), .ends_s = ends_s};
  }
  return first;
}

// By protocol, as the stream of the connection names it (socket_stream.cc).
int ChooseProtocol(SSL* tls, const unsigned char** chosen, unsigned char* size,
                   const unsigned char* offered, unsigned int offered_size, void* /*unused*/) {
  const std::string ours = static_cast<const char*>(SSL_get_app_data(tls));
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
  return context;
}

absl::Status TrustClientsOf(const Certificates& authorities, SSL_CTX* context) {
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  for (const Owned<X509>& one : authorities) {
    if (X509_STORE_add_cert(store, one.get()) != 1 ||
        SSL_CTX_add_client_CA(context, one.get()) != 1) {
      return absl::InvalidArgumentError(LastReason());
    }
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

absl::Status TrustOnly(const std::string& name, SSL_CTX* context) {
  X509_VERIFY_PARAM* const asked = SSL_CTX_get0_param(context);
  const bool taken = X509_VERIFY_PARAM_set1_ip_asc(asked, name.c_str()) == 1 ||
                     X509_VERIFY_PARAM_set1_host(asked, name.data(), name.size()) == 1;
  ERR_clear_error();
  if (taken) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no name of a certificate"));
}

struct Loaded {
  std::shared_ptr<SSL_CTX> context;
  TlsLifetime lifetime, authorities_lifetime;
  int64_t own_end_s = 0;  // Of the certificate itself: what is behind it may not be needed.
};

absl::StatusOr<Loaded> Load(const TlsFiles& files, const FollowedFiles::Texts& texts) {
  TANDEM_ASSIGN_OR_RETURN(const Certificates chain, ReadCertificates(files.certificate, texts[0]));
  TANDEM_ASSIGN_OR_RETURN(const Owned<EVP_PKEY> key, ReadKey(files.key, texts[1]));
  Loaded loaded{.context = NewContext(),
                .lifetime = LifetimeOf(chain),
                .own_end_s = UnixSeconds(X509_get0_notAfter(chain.front().get()))};
  SSL_CTX* const context = loaded.context.get();
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(files.certificate, ": ", LastReason()));
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) {
      return absl::InvalidArgumentError(absl::StrCat(files.certificate, ": ", LastReason()));
    }
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        files.key, ": not the key of the certificate in ", files.certificate, ": ", LastReason()));
  }
  if (!files.client_authorities.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const Certificates authorities,
                            ReadCertificates(files.client_authorities, texts[2]));
    loaded.authorities_lifetime = LifetimeOf(authorities);
    TANDEM_RETURN_IF_ERROR(TrustClientsOf(authorities, context));
  }
  if (!files.client_name.empty()) {
    TANDEM_RETURN_IF_ERROR(TrustOnly(files.client_name, context));
  }
  return loaded;
}

std::vector<std::string> PathsOf(const TlsFiles& files) {
  std::vector<std::string> paths = {files.certificate, files.key};
  if (!files.client_authorities.empty()) paths.push_back(files.client_authorities);
  return paths;
}

}  // namespace

TlsIdentity::TlsIdentity(const TlsFiles& files)
    : files_(files), followed_(PathsOf(files), [this](const auto& texts) { Take(texts); }) {}

absl::StatusOr<std::unique_ptr<TlsIdentity>> TlsIdentity::Open(const TlsFiles& files) {
  std::unique_ptr<TlsIdentity> identity(new TlsIdentity(files));
  identity->followed_.Look();
  TANDEM_RETURN_IF_ERROR(identity->first_);
  identity->followed_.Follow();
  return identity;
}

void TlsIdentity::Take(const absl::StatusOr<FollowedFiles::Texts>& texts) {
  absl::StatusOr<Loaded> loaded =
      texts.ok() ? Load(files_, *texts) : absl::StatusOr<Loaded>(texts.status());
  const int64_t now_s = std::time(nullptr);
  const MutexLock lock(&mu_);
  const bool first = context_ == nullptr;
  if (loaded.ok() && loaded->own_end_s <= now_s && now_s < lifetime_.ends_s) {
    loaded = absl::InvalidArgumentError(
        absl::StrCat(files_.certificate, ": ended ", now_s - loaded->own_end_s, " s ago"));
  }
  if (!loaded.ok()) {
    const std::string why(loaded.status().message());
    if (first) {
      first_ = absl::InvalidArgumentError(why);
    } else {
      LogWarning("the certificate stays as it is", {{"why", why}});
    }
    return;
  }
  context_ = std::move(loaded->context);
  pems_ = std::make_shared<const Pems>(
      Pems{.certificate = (*texts)[0],
           .key = (*texts)[1],
           .client_authorities = has_authorities() ? (*texts)[2] : ""});
  lifetime_ = loaded->lifetime;
  authorities_lifetime_ = loaded->authorities_lifetime;
  generation_.fetch_add(1, std::memory_order_release);
  const int64_t left_s = lifetime_.ends_s - now_s;
  if (left_s <= 0) {
    LogWarning("the certificate has expired", {{"file", files_.certificate}, {"since_s", -left_s}});
  } else if (!first) {
    LogInfo("the certificate changes", {{"file", files_.certificate}, {"expires_in_s", left_s}});
  }
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
