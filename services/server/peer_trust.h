// Whose certificate a process of the fleet believes. One rule for whoever dials, for whoever is
// dialled, and for what a process is itself about to show.
//
// OpenSSL's chain to an authority, within everybody's time, for the purpose at hand; and the name
// is among the certificate's alternative names as it is, but for its case: neither the subject's
// common name nor a wildcard is anybody's name.

#ifndef TANDEM_SERVICES_SERVER_PEER_TRUST_H_
#define TANDEM_SERVICES_SERVER_PEER_TRUST_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "services/server/certificates.h"

namespace tandem {

// What a certificate is shown as.
enum class ShownAs { kClient, kServer };

// InvalidArgument unless `name` is an IP address, or a DNS name: up to 253 characters, its parts
// between dots 1 to 63 letters, digits, '-' and '_'. So no wildcard, and no dot at either end.
absl::Status CheckPeerName(const std::string& name);

// From now on whoever shows `context` a certificate must show one for `name`.
void AskForName(const std::string& name, SSL_CTX* context);

// Whether who believes in the authorities of `believer` believes `chain` at `at_s` of Unix time, if
// it is to be for `name` (empty: for any). InvalidArgument describes the certificate and gives
// OpenSSL's reason. Any thread.
absl::Status JudgeChain(const Certificates& chain, SSL_CTX* believer, ShownAs shown_as,
                        const std::string& name, int64_t at_s);

// OpenSSL's reason, after it did not verify; with the certificate if it is not the first.
std::string WhyNotVerified(const X509_STORE_CTX* verified);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_PEER_TRUST_H_
