// The bytes of a connected socket, read and written without waiting: in the clear, or through TLS
// as its server, whose handshake is a part of the first reads.
//
//   const ssize_t got = stream.Read(buffer, sizeof(buffer));
//   if (got == SocketStream::kWouldBlock) Await(stream.read_awaits(), ...);  // Then again.

#ifndef TANDEM_SERVICES_SERVER_SOCKET_STREAM_H_
#define TANDEM_SERVICES_SERVER_SOCKET_STREAM_H_

#include <openssl/ssl.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "services/server/tls_identity.h"

namespace tandem {

// ALPN: a client that offers protocols must offer the listener's.
inline constexpr char kAlpnHttp1[] = "http/1.1";
inline constexpr char kAlpnHttp2[] = "h2";

// One thread at a time.
class SocketStream {
 public:
  static constexpr ssize_t kWouldBlock = -1;
  static constexpr ssize_t kLost = -2;  // Also where the other end breaks TLS, or is refused.
  enum class Awaits { kReadable, kWritable };

  // A stream over `descriptor`, which is somebody else's and outlives this.
  explicit SocketStream(int descriptor) : descriptor_(descriptor) {}
  SocketStream(int descriptor, const TlsListener& listener, const char* protocol);

  // How many bytes came, 0 at the end, kWouldBlock or kLost. No more than this waits for a reader
  // if `size` is kMaxRecordBytes or more: poll tells of the rest.
  static constexpr size_t kMaxRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
  ssize_t Read(char* to, size_t size);
  // How many were taken, kWouldBlock or kLost. Those that were not come first in the next call.
  ssize_t Write(std::string_view bytes);
  // What the socket has to be before a call that would have blocked makes sense again.
  Awaits read_awaits() const { return read_awaits_; }
  Awaits write_awaits() const { return write_awaits_; }
  // The other end reads an end, as far as there is room for that.
  void EndWriting();
  // Tells the other end of TLS that nothing was cut off.
  void SayGoodbye();
  // Before the descriptor is closed: it may soon be somebody else's. What follows is kLost.
  void Detach();

 private:
  struct Free {
    void operator()(SSL* tls) const { SSL_free(tls); }
  };
  ssize_t Outcome(int result, size_t size, Awaits* awaits);
  void NoticeHandshake();
  void TellOfFailure() const;

  int descriptor_;
  const TlsIdentity* identity_ = nullptr;
  std::unique_ptr<TlsHandshake> handshake_;  // Outlives tls_.
  std::unique_ptr<SSL, Free> tls_;
  bool in_handshake_ = false;
  bool broken_ = false;  // Nothing may be sent any more.
  Awaits read_awaits_ = Awaits::kReadable;
  Awaits write_awaits_ = Awaits::kWritable;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_SOCKET_STREAM_H_
