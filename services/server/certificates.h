// Certificates as OpenSSL has them: out of PEM files, and into a log's line.

#ifndef TANDEM_SERVICES_SERVER_CERTIFICATES_H_
#define TANDEM_SERVICES_SERVER_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

struct FreeCertificate {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Certificates = std::vector<std::unique_ptr<X509, FreeCertificate>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, FreeCertificate>;

// One at least, `most` at most. InvalidArgument names `path`, whose text is `pem`, and says which
// of them cannot be read, or that there are more of `what`.
absl::StatusOr<Certificates> ReadCertificates(const std::string& path, const std::string& pem,
                                              size_t most, const char* what);
absl::StatusOr<PrivateKey> ReadPrivateKey(const std::string& path, const std::string& pem);

// When something begins and ends to be valid, in seconds of Unix time.
struct TlsLifetime {
  int64_t starts_s = 0, ends_s = 0;
};
TlsLifetime LifetimeOf(const X509* certificate);

// "CN=a, for DNS:b, IP Address:c, from 2026-01-31T00:00:00Z to ...": one line of ASCII, cut where
// it is long. Whoever made the certificate chose its words.
std::string Describe(const X509* certificate);

// What OpenSSL last complained of on this thread, which is then forgotten.
std::string LastTlsReason();

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_CERTIFICATES_H_
