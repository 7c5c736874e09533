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
#include "runtime/base/flags.h"

namespace tandem {

// PEM files of a client, each of which may be empty.
struct HttpTlsFlags {
  std::string authorities;  // Otherwise those of the system, or of SSL_CERT_FILE.
  std::string certificate, key;

  // Into this object, which outlives `flags`.
  void Declare(FlagSet* flags);
};

struct HttpTarget {
  bool tls = false;
  std::string host;
  std::string port;
  std::string base_path;  // Without a trailing slash: "" or "/prefix".
  HttpTlsFlags tls_files;
};
// "http://127.0.0.1:8000[/prefix]", or https. InvalidArgument for anything else.
// Also where files are named and `url` has no use for them, or a certificate without its key.
absl::StatusOr<HttpTarget> ParseHttpTarget(std::string_view url, const HttpTlsFlags& tls = {});

class HttpConnection {
 public:
  // A server that says nothing for so long is lost.
  static constexpr std::chrono::milliseconds kSilence{120'000};

  // With https the server's certificate must be for its host, from an authority that is known.
  // Unavailable with the reason, and the file where it is one.
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
