// A blocking HTTP/1.1 client for chat and bench: one connection, one request at a time, bodies read
// as they arrive. Boost.Beast stays inside http_client.cc.

#ifndef TANDEM_TOOLS_TANDEM_HTTP_CLIENT_H_
#define TANDEM_TOOLS_TANDEM_HTTP_CLIENT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

struct HttpTarget {
  bool tls = false;
  std::string host;
  std::string port;
  std::string base_path;  // Without a trailing slash: "" or "/prefix".
};
// "http://127.0.0.1:8000[/prefix]", or https. InvalidArgument for anything else.
absl::StatusOr<HttpTarget> ParseHttpTarget(std::string_view url);

class HttpConnection {
 public:
  // A server that says nothing for so long is lost.
  static constexpr std::chrono::milliseconds kSilence{120'000};

  // Of https the server's certificate must be for its host, and of an authority that the system, or
  // the file that SSL_CERT_FILE names, knows. Unavailable with the reason.
  static absl::StatusOr<std::unique_ptr<HttpConnection>> Connect(
      const HttpTarget& target, std::chrono::milliseconds silence = kSilence);
  ~HttpConnection();

  // Sends a request (no body: GET, else POST of JSON) and hands the body over piece by piece; a
  // false from `on_piece` closes the connection and ends the call. Returns the HTTP status.
  // Unavailable if the connection breaks or is silent, also in the middle of the body.
  using OnPiece = std::function<bool(std::string_view)>;
  absl::StatusOr<int> Send(const std::string& path, const std::string& body,
                           const OnPiece& on_piece);

 private:
  struct State;
  explicit HttpConnection(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Splits a stream of server-sent events into the data of each: feed pieces as they arrive.
class EventStreamParser {
 public:
  // Calls `on_data` for every event that is complete; false from it stops and is returned.
  bool Feed(std::string_view piece, const std::function<bool(std::string_view)>& on_data);

 private:
  std::string unfinished_line_;
};

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_HTTP_CLIENT_H_
