#include "services/server/listen_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

absl::Status CannotListen(const std::string& address, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
}

constexpr int kKind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

// Whether a process still listens there.
bool Served(const sockaddr_un& file) {
  const int probe = socket(AF_UNIX, kKind, 0);
  if (probe < 0) return true;  // Nobody knows.
  const bool served = connect(probe, reinterpret_cast<const sockaddr*>(&file), sizeof(file)) == 0 ||
                      errno == EAGAIN;  // More connect than it has accepted.
  close(probe);
  return served;
}

// Where it was not removed.
void RemoveSocket(const std::string& path) {
  struct stat what {};
  if (lstat(path.c_str(), &what) == 0 && S_ISSOCK(what.st_mode)) unlink(path.c_str());
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<Addresses> Resolve(const std::string& address) {
  const std::optional<HostPort> parts = ParseHostPort(address);
  if (!parts.has_value()) return CannotListen(address, "it is not ADDR:PORT");
  const std::string name = WithoutBrackets(parts->host);
  const std::string host = name == "localhost" ? "127.0.0.1" : name;  // Not ::1 on some machines.
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(parts->port).c_str(), &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  return Addresses(found, freeaddrinfo);
}

// The kernel lets sockets share a port that all say so: with kShared those of one user, one that
// listens among them; with kReused those of anybody, as long as nobody listens, which is how what
// is left of connections is passed over. Whatever holds a port must not say the latter.
enum Sharing : unsigned { kShared = 1, kReused = 2 };

// Less than 0: errno says why not.
int Bound(const addrinfo& address, unsigned sharing) {
  const int descriptor = socket(address.ai_family, kKind, 0);
  if (descriptor < 0) return descriptor;
  const int yes = 1, no = 0;
  if ((sharing & kReused) != 0) {
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  }
  if ((sharing & kShared) != 0) {
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof(yes));
  }
  if (address.ai_family == AF_INET6) {
    setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  }
  if (bind(descriptor, address.ai_addr, address.ai_addrlen) == 0) return descriptor;
  const int why = errno;
  close(descriptor);
  errno = why;
  return -1;
}

// Whether a process listens there.
bool Answers(const addrinfo& address) {
  const int probe = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return true;  // Nobody knows.
  const timeval limit{.tv_sec = 1, .tv_usec = 0};
  setsockopt(probe, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const bool answers =
      connect(probe, address.ai_addr, address.ai_addrlen) == 0 || errno != ECONNREFUSED;
  close(probe);
  return answers;
}

int PortOf(int descriptor) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

absl::StatusOr<ListenSocket> ListenSocket::Open(const std::string& address) {
  ListenSocket result;
  if (address.starts_with(kUnixAddress)) {
    std::string path = address.substr(kUnixAddress.size());
    if (path.starts_with("///")) path.erase(0, 2);  // As a URI is written.
    sockaddr_un file{};
    file.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof(file.sun_path)) {
      return CannotListen(address, "the path is empty or too long");
    }
    path.copy(file.sun_path, path.size());
    result.descriptor_ = socket(AF_UNIX, kKind, 0);
    if (result.descriptor_ < 0) return CannotListen(address, std::strerror(errno));
    if (Served(file)) return CannotListen(address, std::strerror(EADDRINUSE));
    RemoveSocket(path);
    if (bind(result.descriptor_, reinterpret_cast<sockaddr*>(&file), sizeof(file)) != 0 ||
        listen(result.descriptor_, SOMAXCONN) != 0) {
      return CannotListen(address, std::strerror(errno));
    }
    result.path_ = path;
    return result;
  }
  TANDEM_ASSIGN_OR_RETURN(const Addresses found, Resolve(address));
  result.descriptor_ = Bound(*found, kReused);
  if (result.descriptor_ < 0 && errno == EADDRINUSE && !Answers(*found)) {
    result.descriptor_ = Bound(*found, kReused | kShared);  // It may be held for this user.
  }
  if (result.descriptor_ < 0 || listen(result.descriptor_, SOMAXCONN) != 0) {
    return CannotListen(address, std::strerror(errno));
  }
  result.port_ = PortOf(result.descriptor_);
  return result;
}

absl::StatusOr<ListenSocket> ListenSocket::Hold(const std::string& address) {
  ListenSocket result;
  TANDEM_ASSIGN_OR_RETURN(const Addresses found, Resolve(address));
  result.descriptor_ = Bound(*found, kShared);
  if (result.descriptor_ < 0) return CannotListen(address, std::strerror(errno));
  result.port_ = PortOf(result.descriptor_);
  return result;
}

ListenSocket& ListenSocket::operator=(ListenSocket&& other) noexcept {
  Close();
  descriptor_ = other.Release();
  port_ = other.port_;
  path_ = std::exchange(other.path_, {});
  return *this;
}

int ListenSocket::Release() { return std::exchange(descriptor_, -1); }

void ListenSocket::Close() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
  if (!path_.empty()) RemoveSocket(path_);
  path_.clear();
}

void NoticeLostPeers(int descriptor, std::chrono::milliseconds silence,
                     std::chrono::milliseconds timeout, std::chrono::milliseconds unread) {
  const auto set = [&](int level, int name, int64_t value) {
    const int number = static_cast<int>(value);
    setsockopt(descriptor, level, name, &number, sizeof(number));
  };
  const auto seconds = [](std::chrono::milliseconds time) {
    return std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(time).count());
  };
  constexpr int kProbes = 5;
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds(silence));
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds(timeout / kProbes));
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, unread.count());
}

}  // namespace tandem
