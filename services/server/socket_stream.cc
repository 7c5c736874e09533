#include "services/server/socket_stream.h"

#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/memory_budget.h"
#include "services/server/told_times.h"

namespace tandem {
namespace {

ssize_t Receive(int descriptor, char* to, size_t size) {
  ssize_t done = 0;
  do {
    done = recv(descriptor, to, size, MSG_DONTWAIT);
  } while (done < 0 && errno == EINTR);
  return done;
}

ssize_t Send(int descriptor, const char* bytes, size_t size) {
  ssize_t done = 0;
  do {
    done = send(descriptor, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (done < 0 && errno == EINTR);
  return done;
}

int DescriptorOf(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

// What OpenSSL's own BIO of a socket does, without its signals.
BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_read(made, [](BIO* bio, char* to, int size) {
      const ssize_t done = Receive(DescriptorOf(bio), to, static_cast<size_t>(size));
      BIO_clear_retry_flags(bio);
      if (done < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
      return static_cast<int>(done);
    });
    BIO_meth_set_write(made, [](BIO* bio, const char* bytes, int size) {
      const ssize_t done = Send(DescriptorOf(bio), bytes, static_cast<size_t>(size));
      BIO_clear_retry_flags(bio);
      if (done < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
      return static_cast<int>(done);
    });
    BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long {
      return command == BIO_CTRL_FLUSH ? 1 : 0;
    });
    return made;
  }();
  return method;
}

std::string PeerOf(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      (address.ss_family != AF_INET && address.ss_family != AF_INET6) ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  return absl::StrCat(address.ss_family == AF_INET6 ? "[" : "", host,
                      address.ss_family == AF_INET6 ? "]:" : ":", port);
}

// An alert by which the other end says what it thinks of our certificate.
bool IsOfCertificates(unsigned long error) {
  switch (ERR_GET_REASON(error)) {
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return true;
    default:
      return false;
  }
}

}  // namespace

SocketStream::SocketStream(int descriptor, const TlsListener& listener, const char* protocol)
    : descriptor_(descriptor), identity_(listener.identity) {
  if (identity_ == nullptr) return;
  tls_.reset(SSL_new(identity_->Context().get()));
  BIO* const bio = BIO_new(SocketMethod());
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)));
  BIO_set_init(bio, 1);
  SSL_set_bio(tls_.get(), bio, bio);
  handshake_ = std::make_unique<TlsHandshake>(
      TlsHandshake{.protocol = protocol, .peer = PeerOf(descriptor)});
  SSL_set_app_data(tls_.get(), handshake_.get());
  if (listener.any_client) SSL_set_verify(tls_.get(), SSL_VERIFY_NONE, nullptr);
  SSL_set_accept_state(tls_.get());
  in_handshake_ = true;
}

ssize_t SocketStream::Read(char* to, size_t size) {
  if (tls_ == nullptr) {
    const ssize_t done = Receive(descriptor_, to, size);
    return done >= 0 ? done : errno == EAGAIN ? kWouldBlock : kLost;
  }
  if (broken_) return kLost;
  size_t done = 0;
  ERR_clear_error();
  const int result = SSL_read_ex(tls_.get(), to, size, &done);
  return Outcome(result, done, &read_awaits_);
}

ssize_t SocketStream::Write(std::string_view bytes) {
  if (tls_ == nullptr) {
    const ssize_t done = Send(descriptor_, bytes.data(), bytes.size());
    return done >= 0 ? done : errno == EAGAIN ? kWouldBlock : kLost;
  }
  if (broken_) return kLost;
  size_t all = 0;
  while (all < bytes.size()) {
    size_t done = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(tls_.get(), bytes.data() + all, bytes.size() - all, &done);
    const ssize_t outcome = Outcome(result, done, &write_awaits_);
    if (outcome == kWouldBlock && all > 0) break;
    if (outcome < 0) return outcome;
    all += done;
  }
  return static_cast<ssize_t>(all);
}

ssize_t SocketStream::Outcome(int result, size_t size, Awaits* awaits) {
  if (in_handshake_) NoticeHandshake();
  if (result == 1) return static_cast<ssize_t>(size);
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      *awaits = Awaits::kReadable;
      return kWouldBlock;
    case SSL_ERROR_WANT_WRITE:
      *awaits = Awaits::kWritable;
      return kWouldBlock;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    default:
      break;
  }
  broken_ = true;
  if (std::exchange(in_handshake_, false)) {
    TellOfFailure();
    identity_->Handshake(false);
  }
  ERR_clear_error();
  return kLost;
}

// Strangers must not fill the log: of each client, and reason, the 1st time, the 2nd, the 4th...
void SocketStream::TellOfFailure() const {
  static auto* const told = new ToldTimes;
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = error == 0 ? "the client has left" : ERR_reason_error_string(error);
  std::string why = reason == nullptr ? "unknown" : reason;
  const char* message = nullptr;
  if (!handshake_->why_refused.empty()) {
    message = "a client's certificate is refused";
    why = handshake_->why_refused;
  } else if (ERR_GET_REASON(error) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    message = "a client without a certificate is refused";
  } else if (IsOfCertificates(error)) {
    message = "a client refuses the certificate that it is shown";
  }
  const std::string& peer = handshake_->peer;
  if (message == nullptr) return LogDebug("a TLS handshake failed", {{"peer", peer}, {"why", why}});
  // What a peer chose to show is no part of it: a thousand names would use up all that is counted.
  const auto times = told->Happened(
      absl::StrCat(ClientOfPeer(peer), " ", message, " ", handshake_->why_code, " ", error));
  if (!times.has_value()) return;
  LogWarning(
      message,
      {{"peer", peer}, {"presented", handshake_->presented}, {"why", why}, {"times", *times}});
}

void SocketStream::NoticeHandshake() {
  if (SSL_is_init_finished(tls_.get()) != 1) return;
  in_handshake_ = false;
  identity_->Handshake(true);
}

void SocketStream::EndWriting() {
  SayGoodbye();
  shutdown(descriptor_, SHUT_WR);
}

void SocketStream::SayGoodbye() {
  if (tls_ == nullptr || broken_ || in_handshake_) return;
  ERR_clear_error();
  SSL_shutdown(tls_.get());
  ERR_clear_error();
}

void SocketStream::Detach() {
  descriptor_ = -1;
  broken_ = true;
}

}  // namespace tandem
