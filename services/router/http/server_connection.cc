#include "services/router/http/server_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
#include <random>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "services/router/api_error.h"
#include "services/router/api_limits.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadBytes = 4096;
// Of requests that a client sends before the answer to the one before.
constexpr size_t kMaxReadAheadBytes = size_t{64} << 10;
constexpr size_t kMaxWriteBytes = size_t{64} << 10;
constexpr std::chrono::seconds kWriteTimeout{60};  // Without a byte taken by the client.
// A client that is refused while it still sends reads the answer only after it has sent.
constexpr std::chrono::seconds kDiscardTimeout{5};

// The client's own id, where it is short and printable; else a new one.
std::string RequestIdOf(const http::fields& headers) {
  const boost::beast::string_view given = headers["x-request-id"];
  const bool usable =
      !given.empty() && given.size() <= kMaxRequestIdBytes &&
      std::all_of(given.begin(), given.end(), [](char c) { return c > 32 && c < 127; });
  if (usable) return std::string(given);
  thread_local std::mt19937_64 random{std::random_device{}()};
  return absl::StrFormat("%016x%016x", random(), random());
}

std::string Lower(boost::beast::string_view text) {
  return absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

// ---- What a handler holds ----

class ServerConnection::Exchange final : public HttpExchange,
                                         public std::enable_shared_from_this<Exchange> {
 public:
  explicit Exchange(std::shared_ptr<ServerConnection> connection)
      : connection_(std::move(connection)), executor_(connection_->socket_.get_executor()) {}

  void Send(int status, std::string_view content_type, std::string body, Headers headers) override {
    OnStrand([status, type = std::string(content_type), body = std::move(body),
              headers = std::move(headers)](ServerConnection& c) {
      http::response<http::string_body> response;
      Fill(status, type, headers, c, &response);
      response.content_length(body.size());
      std::ostringstream head;
      head << response.base();
      c.complete_ = true;
      c.Append(head.str() + (c.head_only_ ? "" : body));
    });
  }

  void StartStream(int status, std::string_view content_type, Headers headers) override {
    OnStrand([status, type = std::string(content_type),
              headers = std::move(headers)](ServerConnection& c) {
      http::response<http::empty_body> response;
      c.chunked_ = c.parser_->get().version() >= 11;
      if (!c.chunked_) c.keep_alive_ = false;  // The end of the connection is the end of it.
      Fill(status, type, headers, c, &response);
      if (c.chunked_) response.chunked(true);
      std::ostringstream head;
      head << response.base();
      c.Append(head.str());
    });
  }

  void Write(std::string bytes) override {
    OnStrand([bytes = std::move(bytes)](ServerConnection& c) {
      if (bytes.empty() || c.head_only_) return;
      if (c.chunked_) {
        c.Append(absl::StrFormat("%x\r\n%s\r\n", bytes.size(), bytes));
      } else {
        c.Append(bytes);
      }
    });
  }

  void EndStream() override {
    OnStrand([](ServerConnection& c) {
      c.complete_ = true;
      c.Append(c.chunked_ && !c.head_only_ ? "0\r\n\r\n" : "");
    });
  }

  void Post(std::function<void()> work) override { asio::post(executor_, std::move(work)); }

  void OnLeft(std::function<void()> left) override {
    if (connection_ == nullptr) {
      left();
    } else {
      connection_->left_ = std::move(left);
    }
  }

  // The answer is over; the connection goes on without this. Strand only.
  void Release() { connection_.reset(); }

 private:
  template <typename Body>
  static void Fill(int status, const std::string& type, const Headers& headers,
                   const ServerConnection& c, http::response<Body>* response) {
    response->result(static_cast<unsigned>(status));
    response->version(11);
    response->set(http::field::content_type, type);
    response->set("x-request-id", c.request_id_);
    for (const auto& [name, value] : headers) response->set(name, value);
    response->keep_alive(c.keep_alive_);
  }

  void OnStrand(std::function<void(ServerConnection&)> work) {
    asio::dispatch(executor_, [self = shared_from_this(), work = std::move(work)] {
      // A copy: `work` may end the answer.
      const std::shared_ptr<ServerConnection> connection = self->connection_;
      if (connection != nullptr && !connection->complete_) work(*connection);
    });
  }

  std::shared_ptr<ServerConnection> connection_;  // Strand only.
  const asio::any_io_executor executor_;
};

// ---- Reading ----

ServerConnection::ServerConnection(asio::ip::tcp::socket socket, HttpShared* shared)
    : socket_(std::move(socket)), deadline_(socket_.get_executor()), shared_(shared) {}

ServerConnection::~ServerConnection() { shared_->on_closed(); }

void ServerConnection::Run() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    self->SetDeadline(kHeaderTimeout);
    self->ReadHeader();
  });
}

void ServerConnection::Drain() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    if (self->state_ == State::kIdle) self->Close();
  });
}

void ServerConnection::Abandon() { Close(); }

// Between two requests: a byte may come within the idle time, or be here already.
void ServerConnection::WaitForRequest() {
  state_ = State::kIdle;
  if (shared_->draining) return Close();
  if (buffer_.size() > 0) {
    if (watching_) {
      socket_.cancel();  // OnWatched goes on.
    } else {
      ReadHeader();
    }
    return;
  }
  SetDeadline(kIdleTimeout);
  if (!watching_) WatchClient();
}

void ServerConnection::ReadHeader() {
  state_ = State::kReading;
  SetDeadline(kHeaderTimeout);
  parser_.emplace();
  parser_->header_limit(kMaxHeaderBytes);
  parser_->body_limit(kMaxBodyBytes);
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](const error_code& error, size_t) { self->OnHeader(error); });
}

void ServerConnection::OnHeader(const error_code& error) {
  if (state_ == State::kClosed) return;
  if (error) return RefuseUnread(error);
  const auto& request = parser_->get();
  if (std::distance(request.begin(), request.end()) > static_cast<ptrdiff_t>(kMaxHeaderFields)) {
    return Refuse(431, absl::StrFormat("more than %d header fields", kMaxHeaderFields));
  }
  if (request.target().size() > kMaxTargetBytes) {
    return Refuse(414, absl::StrFormat("the target has %d bytes, at most %d are allowed",
                                       request.target().size(), kMaxTargetBytes));
  }
  SetDeadline(kBodyTimeout);
  if (boost::beast::iequals(request[http::field::expect], "100-continue")) {
    sending_ = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(socket_, asio::buffer(sending_),
                      [self = shared_from_this()](const error_code& failed, size_t) {
                        if (failed) return self->Close();
                        self->sending_.clear();
                        self->ReadBody();
                      });
    return;
  }
  ReadBody();
}

void ServerConnection::ReadBody() {
  http::async_read(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](const error_code& error, size_t) { self->OnBody(error); });
}

void ServerConnection::OnBody(const error_code& error) {
  if (state_ == State::kClosed) return;
  if (error) return RefuseUnread(error);
  Answer();
}

void ServerConnection::RefuseUnread(const error_code& error) {
  if (error == http::error::header_limit) {
    return Refuse(431, absl::StrFormat("the header is longer than %d bytes", kMaxHeaderBytes));
  }
  if (error == http::error::body_limit) {
    return Refuse(413, absl::StrFormat("the body is longer than %d bytes", kMaxBodyBytes));
  }
  // Only a request that was wrong is answered, not a connection that broke.
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error.category() != make_error_code(http::error::end_of_stream).category()) {
    return Close();
  }
  Refuse(400, "the request is not HTTP/1.1: " + error.message());
}

// Answers a request that was not read to its end; the connection ends with it.
void ServerConnection::Refuse(int status, std::string_view message) {
  state_ = State::kAnswering;
  request_id_ = RequestIdOf(parser_->get());
  keep_alive_ = false;
  head_only_ = false;
  complete_ = false;
  discard_after_ = true;
  exchange_ = std::make_shared<Exchange>(shared_from_this());
  exchange_->Send(status, "application/json", ErrorJson(status, message, ""), {});
}

void ServerConnection::Answer() {
  state_ = State::kAnswering;
  ClearDeadline();
  auto& message = parser_->get();
  head_only_ = message.method() == http::verb::head;
  chunked_ = false;
  complete_ = false;
  discard_after_ = false;
  keep_alive_ = message.keep_alive() && !shared_->draining;

  request_id_ = RequestIdOf(message);
  HttpRequest request;
  request.id = request_id_;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  request.path = target.substr(0, target.find('?'));
  for (const auto& field : message) {
    request.headers.emplace_back(Lower(field.name_string()), std::string(field.value()));
  }
  request.body = std::move(message.body());
  exchange_ = std::make_shared<Exchange>(shared_from_this());
  if (!watching_) WatchClient();
  shared_->handler->Handle(std::move(request), exchange_);
}

// ---- A client that leaves, or sends ahead ----

void ServerConnection::WatchClient() {
  if (buffer_.size() >= kMaxReadAheadBytes) return;
  watching_ = true;
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](const error_code& error, size_t size) {
                            self->OnWatched(error, size);
                          });
}

void ServerConnection::OnWatched(const error_code& error, size_t size) {
  watching_ = false;
  buffer_.commit(size);
  if (state_ == State::kClosed || state_ == State::kDiscarding) return;
  if (state_ == State::kIdle) {
    if (buffer_.size() > 0) return ReadHeader();
    if (error) return Close();
    return WatchClient();
  }
  if (error) return Close();
  WatchClient();
}

// ---- Writing ----

void ServerConnection::Append(std::string_view bytes) {
  if (state_ == State::kClosed) return;
  // What waits, not what comes: events of many tokens at once are no sign of a slow reader, and a
  // whole answer has its size anyway.
  if (!complete_ && unsent_.size() + sending_.size() - num_written_ > kMaxUnsentBytes) {
    shared_->on_slow_reader();
    return Close();
  }
  unsent_ += bytes;
  WriteMore();
}

void ServerConnection::WriteMore() {
  if (writing_) return;
  if (num_written_ == sending_.size()) {
    sending_ = std::exchange(unsent_, {});
    num_written_ = 0;
  }
  if (sending_.empty()) {
    if (complete_) EndAnswer();
    return;
  }
  writing_ = true;
  SetDeadline(kWriteTimeout);
  socket_.async_write_some(asio::buffer(sending_.data() + num_written_,
                                        std::min(sending_.size() - num_written_, kMaxWriteBytes)),
                           [self = shared_from_this()](const error_code& error, size_t size) {
                             self->OnWritten(error, size);
                           });
}

void ServerConnection::OnWritten(const error_code& error, size_t size) {
  writing_ = false;
  num_written_ += size;
  if (state_ == State::kClosed) return;
  if (error) return Close();
  ClearDeadline();
  WriteMore();
}

void ServerConnection::EndAnswer() {
  exchange_->Release();
  exchange_.reset();
  left_ = nullptr;
  unsent_.shrink_to_fit();
  if (discard_after_) return Discard();
  if (!keep_alive_) {
    error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    return Close();
  }
  WaitForRequest();
}

void ServerConnection::Discard() {
  if (state_ != State::kDiscarding) {
    state_ = State::kDiscarding;
    error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    SetDeadline(kDiscardTimeout);
    discarded_.resize(size_t{64} << 10);
  }
  socket_.async_read_some(asio::buffer(discarded_),
                          [self = shared_from_this()](const error_code& error, size_t) {
                            if (self->state_ == State::kClosed) return;
                            if (error) return self->Close();
                            self->Discard();
                          });
}

void ServerConnection::Close() {
  if (std::exchange(state_, State::kClosed) == State::kClosed) return;
  deadline_.cancel();
  error_code ignored;
  socket_.close(ignored);
  if (exchange_ != nullptr) {
    exchange_->Release();
    exchange_.reset();
  }
  if (const auto left = std::exchange(left_, nullptr)) left();
}

// ---- Time ----

void ServerConnection::SetDeadline(std::chrono::steady_clock::duration time) {
  const uint64_t number = ++deadline_number_;
  deadline_.expires_after(time);
  deadline_.async_wait([self = shared_from_this(), number](const error_code& error) {
    // Cancelled, or overtaken by a later deadline while it was on its way.
    if (error || number != self->deadline_number_) return;
    self->Close();
  });
}

void ServerConnection::ClearDeadline() {
  ++deadline_number_;
  deadline_.cancel();
}

}  // namespace tandem
