// A server of a few answers for each connection, which it closes behind them without having said
// so.

#ifndef TANDEM_TESTS_UNIT_TOOLS_RAW_SERVER_H_
#define TANDEM_TESTS_UNIT_TOOLS_RAW_SERVER_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "tools/tandem/http_client.h"

namespace tandem {

inline constexpr char kWhole[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell";
inline constexpr char kCut[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwell";
inline constexpr char kDoneStream[] =
    "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\ndata: [DONE]\n\n";

class RawServer {
 public:
  RawServer() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const bare = reinterpret_cast<sockaddr*>(&address);
    TANDEM_CHECK(bind(listener_, bare, size) == 0 && listen(listener_, 8) == 0 &&
                 getsockname(listener_, bare, &size) == 0);
    target_ = {.host = "127.0.0.1", .port = std::to_string(ntohs(address.sin_port))};
  }
  ~RawServer() {
    shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }

  const HttpTarget& target() const { return target_; }

  // The answers of each connection.
  void Serve(std::vector<std::vector<std::string>> connections) {
    thread_ = std::thread([this, connections = std::move(connections)] {
      for (const std::vector<std::string>& answers : connections) {
        const int connection = accept(listener_, nullptr, nullptr);
        if (connection < 0) return;
        for (const std::string& answer : answers) {
          asked_.push_back(ReadRequest(connection));
          static_cast<void>(!write(connection, answer.data(), answer.size()));
        }
        close(connection);
      }
    });
  }
  // The requests that were answered. Nothing is, afterwards.
  std::vector<std::string> Asked() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    return asked_;
  }

 private:
  static std::string ReadRequest(int connection) {
    constexpr char kLength[] = "Content-Length: ";
    std::string text;
    char piece[4096];
    for (ssize_t size; (size = read(connection, piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<size_t>(size));
      const size_t end = text.find("\r\n\r\n"), length = text.find(kLength);
      if (end == text.npos) continue;
      const size_t body = length < end ? std::stoul(text.substr(length + sizeof(kLength) - 1)) : 0;
      if (text.size() == end + 4 + body) break;
    }
    return text;
  }

  const int listener_ = socket(AF_INET, SOCK_STREAM, 0);
  HttpTarget target_;
  std::thread thread_;
  std::vector<std::string> asked_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_TOOLS_RAW_SERVER_H_
