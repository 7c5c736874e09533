// One client's connection: requests one after another, each answered before the next is read.
// Internal to the HTTP server.

#ifndef TANDEM_SERVICES_HTTP_SERVER_CONNECTION_H_
#define TANDEM_SERVICES_HTTP_SERVER_CONNECTION_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/check.h"
#include "runtime/base/memory_budget.h"
#include "services/http/http_server.h"
#include "services/server/socket_stream.h"

namespace tandem {

// How many connections there may be only to hear that there is no room for them.
inline constexpr int kMaxToldAtOnce = 64;

// What all connections of a server share; outlives them.
struct HttpShared {
  // Whoever held one would post into what is gone.
  ~HttpShared() { TANDEM_CHECK(*num_exchanges == 0) << *num_exchanges << " outlive their server"; }

  HttpHandler* handler = nullptr;
  HttpTimes times;
  TlsListener tls;
  MemoryBudget* budget = nullptr;
  int64_t connection_bytes = 0;  // What each is charged beside its buffers.
  std::function<void()> on_slow_reader;
  std::function<void()> on_closed;
  enum class Phase : uint8_t { kServing, kDraining, kEnding };
  std::atomic<Phase> phase{Phase::kServing};
  bool draining() const { return phase != Phase::kServing; }
  std::atomic<int> num_told{0};  // At most kMaxToldAtOnce.
  const std::shared_ptr<std::atomic<int>> num_exchanges = std::make_shared<std::atomic<int>>(0);
};

// Strand only, but for the constructor, Run, BeginDrain and EndDrain.
class ServerConnection : public std::enable_shared_from_this<ServerConnection> {
 public:
  // The socket's executor is a strand.
  ServerConnection(boost::asio::ip::tcp::socket socket, HttpShared* shared);
  ~ServerConnection();

  // Charges what every connection costs. ResourceExhausted: it may Run all the same, to be told so.
  absl::Status Admit();
  void Run();
  // As the server's, once shared->phase says so.
  void BeginDrain();
  void EndDrain();
  void Abandon();  // Closes now. Once no I/O thread runs any more.

 private:
  class Exchange;
  enum class State { kReading, kAnswering, kIdle, kDiscarding, kClosed };

  void WaitForRequest();
  void LimitFirstByte();
  void BeginRequest();
  void ReadNext();
  void OnReadable(const boost::system::error_code& error);
  void Await(SocketStream::Awaits awaits,
             void (ServerConnection::*then)(const boost::system::error_code& error));
  void ReadAhead(std::string_view bytes);
  void Parse(std::string_view bytes);
  size_t ParseSome(std::string_view bytes);
  bool CheckHeader();
  void RefuseUnread(const boost::system::error_code& error);
  void Refuse(int status, std::string_view message);
  // What is not read of the present request is dropped; the answer to it is the connection's last.
  void EndUnread();
  HttpRequest Header() const;
  void Answer(std::string_view rest);
  void DecideToKeep();

  size_t NumBuffered() const;
  absl::Status Charge(size_t more_bytes);
  void OnCut();

  void Append(std::string_view bytes);
  void WriteSoon();
  void WriteMore();
  void AwaitReader();
  void OnWritable(const boost::system::error_code& error);
  void OnWritten(size_t size);
  void EndAnswer();
  void Discard();
  void Close();

  void SetDeadline(std::chrono::milliseconds time);
  void ClearDeadline();

  boost::asio::ip::tcp::socket socket_;
  SocketStream stream_;
  boost::asio::steady_timer deadline_;
  uint64_t deadline_number_ = 0;
  HttpShared* const shared_;
  std::unique_ptr<MemoryBudget::Holding> holding_;  // From Admit.
  bool admitted_ = false;
  std::string client_;  // The client's address.
  State state_ = State::kIdle;
  // Read, but not parsed: an unfinished line, or requests that were sent ahead.
  std::string unparsed_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool header_done_ = false;
  size_t extension_bytes_ = 0;  // In the chunks of the present request.
  std::function<void(uint64_t, boost::beast::string_view, boost::system::error_code&)> on_chunk_;

  // ---- Of the present answer ----
  std::shared_ptr<Exchange> exchange_;
  std::function<void()> left_;
  std::string request_id_;
  bool head_only_ = false;
  bool chunked_ = false;
  bool keep_alive_ = false;     // As far as the client asks; once a head is written, what it says.
  bool complete_ = false;       // All of it was appended.
  bool discard_after_ = false;  // Not all that the client sent is read.
  std::string unsent_;          // Not yet given to...
  std::string sending_;         // ...what is being written...
  size_t num_written_ = 0;      // ...and was so far.
  bool writing_ = false;        // Somebody will call WriteMore.
  bool blocked_ = false;        // Once the client has read.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_HTTP_SERVER_CONNECTION_H_
