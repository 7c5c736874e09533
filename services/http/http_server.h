// HTTP/1.1 on Boost.Beast: connections, limits, timeouts and streams on few threads. Knows nothing
// of what is served.
//
// Each connection runs on a strand. While a handler works, the connection keeps reading, so that a
// client that leaves is noticed at once; a half-closed connection counts as left. What a handler
// writes waits in a buffer; a client that leaves more than kMaxUnsentBytes there is cut off. All
// that a connection buffers is charged to a budget first; whoever finds no room gets 503. Every
// answer carries the request's x-request-id, also those that no handler makes.

#ifndef TANDEM_SERVICES_HTTP_HTTP_SERVER_H_
#define TANDEM_SERVICES_HTTP_HTTP_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/memory_budget.h"
#include "services/http/http_limits.h"
#include "services/server/listen_address.h"
#include "services/server/tls_identity.h"

namespace tandem {

struct HttpRequest {
  std::string id;      // The client's x-request-id where it is short and printable, else a new one.
  std::string client;  // The client's address, as the budget names it.
  std::string method;
  std::string path;  // Without the query.
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // Names in lower case.
  std::shared_ptr<MemoryBudget::Holding> holding;            // For all this, where it is not small.

  // Empty if there is none.
  std::string_view Header(std::string_view name) const;
};

// The answer to one request. Any thread, except where noted; calls for a request that has been
// answered, or whose client has left, do nothing. Exactly one of Send and StartStream + EndStream.
// Nobody holds one any more when the server is destroyed.
class HttpExchange {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  virtual ~HttpExchange() = default;
  virtual void Send(int status, std::string_view content_type, std::string body,
                    Headers headers = {}) = 0;
  virtual void StartStream(int status, std::string_view content_type, Headers headers = {}) = 0;
  virtual void Write(std::string bytes) = 0;
  virtual void EndStream() = 0;
  // Runs on the connection's strand, in order.
  virtual void Post(std::function<void()> work) = 0;
  // Called on the strand if the client leaves, or is cut off, before the answer is complete. At
  // once if it has left already. Strand only.
  virtual void OnLeft(std::function<void()> left) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Whether Handle refuses it, with Send, whatever its body is, which is not read then: it comes to
  // Handle without one. On an I/O thread, as soon as the header is here.
  virtual bool RefusesAtHeader(const HttpRequest& /*header*/) const { return false; }
  // On an I/O thread: hands work over and returns.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
};

// How long a client may take for what it has to do; then its connection is closed.
struct HttpTimes {
  std::chrono::milliseconds header = kHeaderTimeout;
  std::chrono::milliseconds body = kBodyTimeout;  // From the end of the header.
  std::chrono::milliseconds idle = kIdleTimeout;  // To the next request.
  std::chrono::milliseconds write = kWriteTimeout;
  // To leave after it was refused while it still sent: it reads the answer only after that.
  std::chrono::milliseconds discard{5'000};
  std::chrono::milliseconds discard_in_drain{1'000};  // The same once the server drains.
  // For one more request, once it drains.
  std::chrono::milliseconds last_request = kLastRequestTimeout;
};

struct HttpServerOptions {
  ListenAddress address;
  TlsListener tls;
  MemoryBudget* budget = nullptr;             // Outlives the server.
  int64_t max_connections = kMaxConnections;  // By when the budget is used up.
  HttpTimes times;
  int num_threads = 2;
  std::function<void(int)> on_connections;  // How many are open. Any thread.
  std::function<void()> on_slow_reader;     // One was cut off. Any thread.
};

class HttpServer {
 public:
  // Listens and serves from now on. `handler` outlives the server. Unavailable if the address
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(const HttpServerOptions& options,
                                                            HttpHandler* handler);
  ~HttpServer();  // Stop at once.

  int port() const;  // The one bound, where 0 was asked for.
  // Accepts no connection any more beyond those that the kernel has made. Each answer whose head is
  // still to be written ends its connection. A request of which a part is here is read to its end
  // and served; so is one more of each connection that its client was told to keep, and the first
  // of one that has had none, within HttpTimes::last_request.
  void BeginDrain();
  // A request that is not here as a whole hears 503, and a connection that asks nothing is closed.
  // Running answers go on.
  void EndDrain();
  // EndDrain; waits for the connections that are left, then closes them.
  void Stop(std::chrono::steady_clock::time_point until);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_HTTP_HTTP_SERVER_H_
