#include "tests/support/raw_http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "runtime/base/check.h"

namespace tandem {
namespace {

constexpr int kReceiveTimeoutS = 30;

}  // namespace

RawHttp::RawHttp(int port, int receive_buffer_bytes, const char* from)
    : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
  timeval timeout{.tv_sec = kReceiveTimeoutS};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  if (receive_buffer_bytes > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, from, &address.sin_addr);
  TANDEM_CHECK(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) << from;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  TANDEM_CHECK(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
      << "port " << port;
}

RawHttp::~RawHttp() { close(socket_); }

void RawHttp::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // Read shows what the server had to say.
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void RawHttp::SendRequest(const std::string& path, const std::string& body,
                          const std::string& more_headers) {
  std::string request =
      (body.empty() ? "GET " : "POST ") + path + " HTTP/1.1\r\nHost: localhost\r\n" + more_headers;
  if (!body.empty()) {
    request +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  Send(request + "\r\n" + body);
}

bool RawHttp::ReadMore() {
  char bytes[65536];
  const ssize_t received = recv(socket_, bytes, sizeof(bytes), 0);
  if (received <= 0) {
    closed_ = received == 0 || errno != EAGAIN;
    return false;
  }
  buffer_.append(bytes, static_cast<size_t>(received));
  return true;
}

bool RawHttp::ReadUntil(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!ReadMore()) return false;
  }
  return true;
}

size_t RawHttp::ReadToEnd() {
  size_t total = buffer_.size();
  buffer_.clear();
  while (ReadMore()) {
    total += buffer_.size();
    buffer_.clear();
  }
  TANDEM_CHECK(closed_) << "not closed within " << kReceiveTimeoutS << " s";
  return total;
}

RawAnswer RawHttp::Read() {
  RawAnswer answer;
  if (!ReadUntil("\r\n\r\n")) return answer;
  const size_t head_end = buffer_.find("\r\n\r\n");
  const std::string head = buffer_.substr(0, head_end + 2);
  buffer_.erase(0, head_end + 4);
  answer.status = std::atoi(head.c_str() + head.find(' ') + 1);
  for (size_t begin = head.find("\r\n") + 2; begin < head.size();) {
    const size_t end = head.find("\r\n", begin), colon = head.find(':', begin);
    std::string name = head.substr(begin, colon - begin);
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return std::tolower(c); });
    answer.headers[name] = head.substr(colon + 2, end - colon - 2);
    begin = end + 2;
  }
  if (answer.status == 100) {  // The answer itself is still to come.
    answer.complete = true;
    return answer;
  }
  if (answer.headers.count("content-length") > 0) {
    const size_t size = std::strtoull(answer.headers["content-length"].c_str(), nullptr, 10);
    while (buffer_.size() < size && ReadMore()) {
    }
    answer.complete = buffer_.size() >= size;
    answer.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return answer;
  }
  while (true) {  // Chunks.
    if (!ReadUntil("\r\n")) return answer;
    const size_t line_end = buffer_.find("\r\n");
    const size_t size = std::strtoull(buffer_.c_str(), nullptr, 16);
    while (buffer_.size() < line_end + 2 + size + 2) {
      if (!ReadMore()) return answer;
    }
    answer.body += buffer_.substr(line_end + 2, size);
    buffer_.erase(0, line_end + 2 + size + 2);
    if (size == 0) break;
  }
  answer.complete = true;
  return answer;
}

bool RawHttp::AllReceived() const {
  int bytes = 0;
  return ioctl(socket_, TIOCOUTQ, &bytes) == 0 && bytes == 0;
}

int RawHttp::ServerSide() const {
  sockaddr_in own{}, peer{};
  socklen_t size = sizeof(own);
  TANDEM_CHECK(getsockname(socket_, reinterpret_cast<sockaddr*>(&own), &size) == 0);
  for (int other = 0; other < 1 << 16; ++other) {
    size = sizeof(peer);
    if (getpeername(other, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sin_family == AF_INET && peer.sin_port == own.sin_port &&
        peer.sin_addr.s_addr == own.sin_addr.s_addr) {
      return other;
    }
  }
  return -1;
}

bool TellsSetting(int port, uint8_t id, uint32_t value) {
  RawHttp client(port);
  // The preface, and settings of our own: none.
  client.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  client.Send(std::string_view("\0\0\0\4\0\0\0\0\0", 9));
  std::string setting = {0, static_cast<char>(id)};
  for (const int shift : {24, 16, 8, 0}) setting += static_cast<char>(value >> shift);
  return client.ReadUntil(setting);
}

std::vector<std::string> EventsOf(const std::string& body) {
  std::vector<std::string> events;
  for (size_t begin = 0; begin < body.size();) {
    const size_t end = body.find("\n\n", begin);
    if (end == std::string::npos) break;
    const std::string line = body.substr(begin, end - begin);
    if (line.rfind("data: ", 0) == 0) events.push_back(line.substr(6));
    begin = end + 2;
  }
  return events;
}

}  // namespace tandem
