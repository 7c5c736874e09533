// What a listener of ours shows to whoever connects through TLS, and what it asks of them.
//
// Three PEM files, followed while the process runs: a certificate with the chain behind it, its
// key, and the authorities that sign clients' certificates. Connections made from then on see what
// changed; those that stand stay as they are. Files that do not fit together change nothing, nor
// does a certificate that would be refused, which the log says once; it is judged again at each
// look, as time may mend it. So whoever replaces a certificate and its key one after the other
// breaks nothing.
//
// TLS 1.2 and 1.3. Every connection begins with a whole handshake, so that none lives on the
// certificate that an earlier one showed.

#ifndef TANDEM_SERVICES_SERVER_TLS_IDENTITY_H_
#define TANDEM_SERVICES_SERVER_TLS_IDENTITY_H_

#include <openssl/ssl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"
#include "services/server/certificates.h"
#include "services/server/followed_files.h"

namespace tandem {

struct TlsFiles {
  std::string certificate;
  std::string key;
  // Whoever connects must show a certificate that one of these signed; empty: nobody need.
  std::string client_authorities;
  // And one that is for this name, or IP address (peer_trust.h); empty: for any.
  std::string peer_name;
  // The same files are shown to processes that have the same authorities and ask for the same name:
  // what those would refuse is refused before. Otherwise only what every client looks at is judged.
  bool among_peers = false;
};

// What the certificate file may have: those who are shown more may end the handshake.
inline constexpr size_t kMaxTlsChain = 10;
inline constexpr int64_t kMaxTlsChainBytes = int64_t{64} << 10;
// All public authorities have 140 together, and all their names are sent to who connects.
inline constexpr size_t kMaxTlsAuthorities = 256;
// How far ahead a certificate may begin that is there when the process starts.
inline constexpr int64_t kClockSkewS = 300;

// What one connection's handshake is about: the app data of its SSL.
struct TlsHandshake {
  std::string protocol;                // ALPN's.
  std::string peer;                    // "10.0.0.1:80", "[::1]:80"; empty where it has no address.
  std::string presented, why_refused;  // A certificate that was not believed, and why.
  int why_code = 0;                    // OpenSSL's code for the same.
};

class TlsIdentity {
 public:
  using OnHandshake = std::function<void(bool ok)>;
  // What the files have, and somebody else may use.
  struct Pems {
    std::string certificate, key, client_authorities;
  };

  // Follows the files from now on. InvalidArgument names the file and what is wrong with it, also
  // where the key is not the certificate's. Among peers a certificate may begin in kClockSkewS;
  // otherwise one that clients will refuse for its time is taken at first, with a warning.
  static absl::StatusOr<std::unique_ptr<TlsIdentity>> Open(const TlsFiles& files);

  // For connections from now on. Any thread.
  std::shared_ptr<SSL_CTX> Context() const EXCLUDES(mu_);
  // What Context is made of, and how often it has changed. Any thread.
  std::shared_ptr<const Pems> pems() const EXCLUDES(mu_);
  uint64_t num_changes() const { return num_changes_.load(std::memory_order_acquire); }
  // When the chain's certificate that ends first does; when the first of the authorities does, if
  // there are any. Any thread.
  TlsLifetime lifetime() const EXCLUDES(mu_);
  TlsLifetime authorities_lifetime() const EXCLUDES(mu_);
  // The files have what is not taken, for now. Any thread.
  bool refused() const EXCLUDES(mu_);
  bool has_authorities() const { return !files_.client_authorities.empty(); }

  // Told of the end of every handshake, on the thread of its connection. Before the first.
  void SetOnHandshake(OnHandshake on_handshake) { on_handshake_ = std::move(on_handshake); }
  void Handshake(bool ok) const {
    if (on_handshake_) on_handshake_(ok);
  }

  // For tests: instead of in 2 s.
  void Look() { followed_.Look(); }

 private:
  explicit TlsIdentity(const TlsFiles& files);
  bool Take(const absl::StatusOr<FollowedFiles::Texts>& texts) EXCLUDES(mu_);
  void Refuse(const std::string& why) EXCLUDES(mu_);

  const TlsFiles files_;
  OnHandshake on_handshake_;
  mutable Mutex mu_;
  std::shared_ptr<SSL_CTX> context_ GUARDED_BY(mu_);
  std::shared_ptr<const Pems> pems_ GUARDED_BY(mu_);
  TlsLifetime lifetime_ GUARDED_BY(mu_), authorities_lifetime_ GUARDED_BY(mu_);
  std::string why_refused_ GUARDED_BY(mu_);
  std::atomic<uint64_t> num_changes_{0};
  absl::Status first_;  // What the first look at the files came to; Open returns it.
  FollowedFiles followed_;
};

// What TLS takes for a connection beside all else: 13 KiB were measured of an idle one, and a
// record each way while there is something to say.
inline constexpr int64_t kTlsConnectionBytes = int64_t{48} << 10;

// How a listener speaks.
struct TlsListener {
  const TlsIdentity* identity = nullptr;  // Outlives the listener; null: in the clear.
  bool any_client = false;                // Whatever the identity asks of them: for probes.

  int64_t connection_bytes() const { return identity == nullptr ? 0 : kTlsConnectionBytes; }
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_TLS_IDENTITY_H_
