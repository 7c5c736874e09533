// Sockets that listen, for HTTP and gRPC alike, and what the kernel is asked about those accepted.

#ifndef TANDEM_SERVICES_SERVER_LISTEN_SOCKET_H_
#define TANDEM_SERVICES_SERVER_LISTEN_SOCKET_H_

#include <chrono>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace tandem {

// A socket that listens; one that is a file is removed with this.
class ListenSocket {
 public:
  // "127.0.0.1:0", "[::1]:80", "[::]:80" (IPv4 too), "localhost:80", "unix:/tmp/socket". One that
  // does not block. Unavailable, with the address and why, also where somebody else listens. On a
  // port that this user holds whoever comes first listens.
  static absl::StatusOr<ListenSocket> Open(const std::string& address);
  // Keeps a port for processes of this user, without listening: while none of them listens there,
  // no other user of the machine can. Unavailable as Open. Not of files.
  static absl::StatusOr<ListenSocket> Hold(const std::string& address);

  ListenSocket() = default;
  ~ListenSocket() { Close(); }
  ListenSocket(ListenSocket&& other) noexcept { *this = std::move(other); }
  ListenSocket& operator=(ListenSocket&& other) noexcept;

  int descriptor() const { return descriptor_; }
  // Gives the descriptor away: closing it is the caller's from now on.
  int Release();
  int port() const { return port_; }  // The one bound, where 0 was asked for; 0 of a file.

 private:
  void Close();

  int descriptor_ = -1;
  int port_ = 0;
  std::string path_;
};

// A peer that vanished without a word is an error on its socket after `silence` + `timeout`; after
// `unread` where it has bytes to acknowledge, as is one that is there and does not read. Not every
// kernel and socket has these options; the unit of the first two is seconds.
void NoticeLostPeers(int descriptor, std::chrono::milliseconds silence,
                     std::chrono::milliseconds timeout, std::chrono::milliseconds unread);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_LISTEN_SOCKET_H_
