// One client's connection: requests one after another, each answered before the next is read.
// Internal to the HTTP server.

#ifndef TANDEM_SERVICES_ROUTER_HTTP_SERVER_CONNECTION_H_
#define TANDEM_SERVICES_ROUTER_HTTP_SERVER_CONNECTION_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "services/router/http/http_server.h"

namespace tandem {

// What all connections of a server share; outlives them.
struct HttpShared {
  HttpHandler* handler = nullptr;
  std::function<void()> on_slow_reader;
  std::function<void()> on_closed;
  std::atomic<bool> draining{false};
};

// Strand only, but for the constructor, Run and Drain.
class ServerConnection : public std::enable_shared_from_this<ServerConnection> {
 public:
  // The socket's executor is a strand.
  ServerConnection(boost::asio::ip::tcp::socket socket, HttpShared* shared);
  ~ServerConnection();

  void Run();
  void Drain();    // Closes now if no request is being answered.
  void Abandon();  // Closes now. Once no I/O thread runs any more.

 private:
  class Exchange;
  enum class State { kReading, kAnswering, kIdle, kDiscarding, kClosed };

  void WaitForRequest();
  void ReadHeader();
  void OnHeader(const boost::system::error_code& error);
  void ReadBody();
  void OnBody(const boost::system::error_code& error);
  void RefuseUnread(const boost::system::error_code& error);
  void Refuse(int status, std::string_view message);
  void Answer();
  void WatchClient();
  void OnWatched(const boost::system::error_code& error, size_t size);

  void Append(std::string_view bytes);
  void WriteMore();
  void OnWritten(const boost::system::error_code& error, size_t size);
  void EndAnswer();
  void Discard();
  void Close();

  void SetDeadline(std::chrono::steady_clock::duration time);
  void ClearDeadline();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_;
  uint64_t deadline_number_ = 0;
  HttpShared* const shared_;
  State state_ = State::kIdle;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool watching_ = false;  // A read is under way while answering or idle.
  std::string discarded_;

  // ---- Of the present answer ----
  std::shared_ptr<Exchange> exchange_;
  std::function<void()> left_;
  std::string request_id_;
  bool head_only_ = false;
  bool chunked_ = false;
  bool keep_alive_ = false;
  bool complete_ = false;       // All of it was appended.
  bool discard_after_ = false;  // The request was not read to its end.
  std::string unsent_;          // Not yet given to...
  std::string sending_;         // ...what is being written...
  size_t num_written_ = 0;      // ...and was so far.
  bool writing_ = false;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_SERVER_CONNECTION_H_
