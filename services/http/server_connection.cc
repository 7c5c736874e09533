#include "services/http/server_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "runtime/base/entropy.h"
#include "services/http/http_error.h"
#include "services/http/http_limits.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kMaxWriteBytes = size_t{64} << 10;
// The part of what a connection costs that its buffers may use: a small request and its answer need
// no more.
constexpr size_t kIncludedBytes = size_t{8} << 10;

// The client's own id, where it is short and printable; else a new one.
std::string RequestIdOf(const http::fields& headers) {
  const boost::beast::string_view given = headers["x-request-id"];
  const bool usable =
      !given.empty() && given.size() <= kMaxRequestIdBytes &&
      std::all_of(given.begin(), given.end(), [](char c) { return c > 32 && c < 127; });
  if (usable) return std::string(given);
  // Who can guess it can abort the request.
  return absl::StrFormat("%016x%016x", RandomIdentity(), RandomIdentity());
}

// What another reader of the same bytes could take for other requests, or one for another host (RFC
// 9112, 3.2 and 6.1): status and why not. 0: nothing.
std::pair<int, const char*> Ambiguity(const http::request_header<>& header) {
  const size_t num_hosts = header.count(http::field::host);
  if (num_hosts > 1 || (num_hosts == 0 && header.version() >= 11)) {
    return {400, "the request is not HTTP/1.1: it needs one Host field"};
  }
  if (header.count(http::field::content_length) > 1) {
    return {400, "the request is not HTTP/1.1: it has two lengths"};
  }
  const size_t num_codings = header.count(http::field::transfer_encoding);
  if (num_codings == 0) return {};
  if (header.version() < 11)
    return {400, "the request is not HTTP/1.1, but has a Transfer-Encoding"};
  if (num_codings > 1 ||
      !boost::beast::iequals(header[http::field::transfer_encoding], "chunked")) {
    return {501, "Transfer-Encoding: only chunked is known"};
  }
  return {};
}

bool IsControl(char c) { return (c >= 0 && c < 32 && c != '\t') || c == 127; }

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
      : connection_(std::move(connection)),
        executor_(connection_->socket_.get_executor()),
        num_exchanges_(connection_->shared_->num_exchanges) {
    ++*num_exchanges_;
  }
  ~Exchange() override { --*num_exchanges_; }

  void Send(int status, std::string_view content_type, std::string body, Headers headers) override {
    OnStrand([status, type = std::string(content_type), body = std::move(body),
              headers = std::move(headers)](ServerConnection& c) {
      c.DecideToKeep();
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
      c.DecideToKeep();
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
  const std::shared_ptr<std::atomic<int>> num_exchanges_;
};

// ---- Reading ----

ServerConnection::ServerConnection(asio::ip::tcp::socket socket, HttpShared* shared)
    : socket_(std::move(socket)),
      stream_(socket_.native_handle(), shared->tls, kAlpnHttp1),
      deadline_(socket_.get_executor()),
      shared_(shared) {
  on_chunk_ = [this](uint64_t, boost::beast::string_view extensions, error_code& error) {
    extension_bytes_ += extensions.size();
    if (extension_bytes_ > kMaxChunkExtensionBytes) error = http::error::header_limit;
    // A line end in a quoted value would be one to another reader (RFC 9112, 7.1.1).
    if (std::any_of(extensions.begin(), extensions.end(), IsControl)) {
      error = http::error::bad_chunk_extension;
    }
  };
}

ServerConnection::~ServerConnection() {
  if (!admitted_) --shared_->num_told;
  shared_->on_closed();
}

absl::Status ServerConnection::Admit() {
  error_code error;
  const auto peer = socket_.remote_endpoint(error);
  std::ostringstream text;
  if (!error) text << peer;
  client_ = ClientOfPeer(text.str());
  holding_ = std::make_unique<MemoryBudget::Holding>(
      shared_->budget, client_, [weak = weak_from_this(), executor = socket_.get_executor()] {
        asio::post(executor, [weak] {
          if (const auto self = weak.lock()) self->OnCut();
        });
      });
  const absl::Status status = Charge(0);
  admitted_ = status.ok();
  if (!admitted_) ++shared_->num_told;
  return status;
}

void ServerConnection::Run() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    if (self->shared_->phase == HttpShared::Phase::kEnding) return self->Close();
    self->BeginRequest();
    self->LimitFirstByte();
    self->ReadNext();
  });
}

void ServerConnection::BeginDrain() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    switch (self->state_) {
      case State::kIdle:
        return self->SetDeadline(self->shared_->times.last_request);
      case State::kReading:
        return self->LimitFirstByte();
      case State::kDiscarding:
        return self->SetDeadline(self->shared_->times.discard_in_drain);
      case State::kAnswering:
      case State::kClosed:
        return;
    }
  });
}

void ServerConnection::EndDrain() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    switch (self->state_) {
      case State::kIdle:
        return self->Close();
      case State::kReading:
        if (!self->parser_->got_some()) return self->Close();
        return self->Refuse(503, "the server is shutting down");
      case State::kDiscarding:
        return self->SetDeadline(self->shared_->times.discard_in_drain);
      case State::kAnswering:
      case State::kClosed:
        return;
    }
  });
}

void ServerConnection::Abandon() { Close(); }

// Between two requests: a byte may come within the idle time, or be here already.
void ServerConnection::WaitForRequest() {
  state_ = State::kIdle;
  static_cast<void>(Charge(0));  // It only becomes less.
  SetDeadline(shared_->draining() ? shared_->times.last_request : shared_->times.idle);
  if (unparsed_.empty()) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->state_ == State::kIdle) self->Parse(std::exchange(self->unparsed_, {}));
  });
}

// Who has sent nothing on a new connection when the server drains has no more time than who asks
// again.
void ServerConnection::LimitFirstByte() {
  if (shared_->draining() && !parser_->got_some()) SetDeadline(shared_->times.last_request);
}

void ServerConnection::BeginRequest() {
  state_ = State::kReading;
  SetDeadline(shared_->times.header);
  parser_.emplace();
  parser_->header_limit(kMaxHeaderBytes);
  parser_->body_limit(kMaxBodyBytes);
  parser_->on_chunk_header(on_chunk_);
  header_done_ = complete_ = false;
  extension_bytes_ = 0;
}

// One wait is always under way, so that a client that leaves is noticed whatever it sent before.
void ServerConnection::ReadNext() { Await(stream_.read_awaits(), &ServerConnection::OnReadable); }

void ServerConnection::Await(SocketStream::Awaits awaits,
                             void (ServerConnection::*then)(const error_code& error)) {
  const auto ready = awaits == SocketStream::Awaits::kReadable ? asio::ip::tcp::socket::wait_read
                                                               : asio::ip::tcp::socket::wait_write;
  socket_.async_wait(ready, [self = shared_from_this(), then](const error_code& error) {
    ((*self).*then)(error);
  });
}

void ServerConnection::OnReadable(const error_code& failed) {
  if (state_ == State::kClosed) return;
  if (failed) return Close();
  // Shared by all connections of the thread: those that wait have no buffer.
  thread_local std::array<char, kReadBytes> bytes;
  const ssize_t got = stream_.Read(bytes.data(), bytes.size());
  if (got == 0 || got == SocketStream::kLost) return Close();
  if (got > 0) {
    const std::string_view read(bytes.data(), static_cast<size_t>(got));
    switch (state_) {
      case State::kReading:
      case State::kIdle:
        Parse(read);
        break;
      case State::kAnswering:
        ReadAhead(read);
        break;
      case State::kDiscarding:
      case State::kClosed:
        break;
    }
  }
  if (state_ != State::kClosed) ReadNext();
}

// Requests that come before the answer to the one before. A client that sends more of them than may
// wait gets that answer, and the connection ends with it.
void ServerConnection::ReadAhead(std::string_view bytes) {
  if (discard_after_) return;
  if (unparsed_.size() + bytes.size() > kMaxReadAheadBytes || !Charge(bytes.size()).ok()) {
    discard_after_ = true;
    keep_alive_ = false;
    std::string().swap(unparsed_);
    return;
  }
  unparsed_ += bytes;
}

void ServerConnection::Parse(std::string_view bytes) {
  if (state_ == State::kIdle) BeginRequest();
  if (!admitted_) return Refuse(503, "memory: no room for another connection");
  if (shared_->draining() && !parser_->got_some()) SetDeadline(shared_->times.header);
  const size_t copies = parser_->chunked() ? 2 : 1;
  if (const absl::Status status = Charge(copies * bytes.size()); !status.ok()) {
    return Refuse(503, std::string(status.message()));
  }
  std::string whole;
  if (!unparsed_.empty()) {
    whole = std::exchange(unparsed_, {}).append(bytes);
    bytes = whole;
  }
  const std::string_view rest = bytes.substr(ParseSome(bytes));
  if (state_ != State::kReading) return;  // Refused.
  if (parser_->is_done()) return Answer(rest);
  if (rest.empty()) return;
  if (rest.size() >= kMaxHeaderBytes) {
    return Refuse(431, absl::StrFormat("a line is longer than %d bytes", kMaxHeaderBytes));
  }
  unparsed_ = rest;
}

// Until the request is complete, refused, or more must come. How many bytes it took.
size_t ServerConnection::ParseSome(std::string_view bytes) {
  size_t used = 0;
  while (state_ == State::kReading && used < bytes.size()) {
    error_code error;
    used += parser_->put(asio::buffer(bytes.substr(used)), error);
    const bool more = error == http::error::need_more;
    if (error && !more) {
      RefuseUnread(error);
    } else if (!CheckHeader() || parser_->is_done() || more) {
      break;
    }
  }
  return used;
}

// False if the request was refused for it.
bool ServerConnection::CheckHeader() {
  const auto& request = parser_->get();
  if (std::distance(request.begin(), request.end()) > static_cast<ptrdiff_t>(kMaxHeaderFields)) {
    Refuse(431, absl::StrFormat("more than %d header fields", kMaxHeaderFields));
    return false;
  }
  if (header_done_ || !parser_->is_header_done()) return true;
  header_done_ = true;
  holding_->SetIdle(false);
  if (request.target().size() > kMaxTargetBytes) {
    Refuse(414, absl::StrFormat("the target has %d bytes, at most %d are allowed",
                                request.target().size(), kMaxTargetBytes));
    return false;
  }
  if (const auto [status, why] = Ambiguity(request); status != 0) {
    Refuse(status, why);
    return false;
  }
  if (!parser_->is_done()) {
    HttpRequest header = Header();
    if (shared_->handler->RefusesAtHeader(header)) {
      EndUnread();
      request_id_ = header.id;
      shared_->handler->Handle(std::move(header), exchange_);
      return false;
    }
  }
  SetDeadline(shared_->times.body);
  // HTTP/1.0 knows no interim answers.
  if (request.version() >= 11 &&
      boost::beast::iequals(request[http::field::expect], "100-continue")) {
    Append("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

void ServerConnection::RefuseUnread(const error_code& error) {
  if (error == http::error::header_limit) {
    return Refuse(
        431,
        extension_bytes_ > kMaxChunkExtensionBytes
            ? absl::StrFormat("chunk extensions are longer than %d bytes", kMaxChunkExtensionBytes)
            : absl::StrFormat("the header is longer than %d bytes", kMaxHeaderBytes));
  }
  if (error == http::error::body_limit) {
    return Refuse(413, absl::StrFormat("the body is longer than %d bytes", kMaxBodyBytes));
  }
  Refuse(400, "the request is not HTTP/1.1: " + error.message());
}

// Answers a request that was not read to its end; the connection ends with it.
void ServerConnection::Refuse(int status, std::string_view message) {
  EndUnread();
  HttpExchange::Headers headers;
  if (status == 503) headers.emplace_back("Retry-After", "1");
  exchange_->Send(status, "application/json", ErrorJson(status, message), std::move(headers));
}

void ServerConnection::EndUnread() {
  state_ = State::kAnswering;
  request_id_ = RequestIdOf(parser_->get());
  keep_alive_ = false;
  head_only_ = parser_->get().method() == http::verb::head;
  discard_after_ = true;
  exchange_ = std::make_shared<Exchange>(shared_from_this());
  parser_.reset();  // What was read of the body goes before the answer is made.
  std::string().swap(unparsed_);
}

HttpRequest ServerConnection::Header() const {
  const auto& message = parser_->get();
  const std::string target(message.target());
  HttpRequest request{.id = RequestIdOf(message),
                      .client = client_,
                      .method = std::string(message.method_string()),
                      .path = target.substr(0, target.find('?')),
                      .body = {},
                      .headers = {},
                      .holding = nullptr};
  for (const auto& field : message) {
    request.headers.emplace_back(Lower(field.name_string()), std::string(field.value()));
  }
  return request;
}

// `rest` came behind the request.
void ServerConnection::Answer(std::string_view rest) {
  auto& message = parser_->get();
  head_only_ = message.method() == http::verb::head;
  keep_alive_ = message.keep_alive();

  HttpRequest request = Header();
  request_id_ = request.id;
  // From here on the request is no upload of the connection's, which nobody may cut off now.
  const size_t request_bytes = NumBuffered();
  state_ = State::kAnswering;
  ClearDeadline();
  if (blocked_) SetDeadline(shared_->times.write);  // It has not read "100 Continue".
  request.body = std::move(message.body());
  static_cast<void>(Charge(0));
  if (request_bytes > kIncludedBytes) {
    request.holding = std::make_shared<MemoryBudget::Holding>(shared_->budget, client_);
    const auto bytes = static_cast<int64_t>(request_bytes);
    if (const absl::Status status = request.holding->Set(bytes); !status.ok()) {
      return Refuse(503, std::string(status.message()));
    }
  }
  if (!rest.empty()) ReadAhead(rest);
  exchange_ = std::make_shared<Exchange>(shared_from_this());
  shared_->handler->Handle(std::move(request), exchange_);
}

// As a head says it: nothing that comes later changes it, but that the client sends too far ahead.
void ServerConnection::DecideToKeep() {
  // Requests that were sent ahead are here already.
  if (shared_->draining() && unparsed_.empty()) keep_alive_ = false;
}

// ---- What it holds ----

size_t ServerConnection::NumBuffered() const {
  size_t bytes = unparsed_.size() + unsent_.size() + sending_.size();
  if (parser_.has_value()) {
    // A chunked body is copied as it grows.
    bytes += parser_->get().body().size() * (parser_->chunked() ? 2 : 1);
  }
  return bytes;
}

// Before its buffers grow by `more_bytes`.
absl::Status ServerConnection::Charge(size_t more_bytes) {
  const size_t buffered = NumBuffered() + more_bytes;
  const size_t beyond = buffered > kIncludedBytes ? buffered - kIncludedBytes : 0;
  holding_->SetMayBeCut(state_ != State::kAnswering || beyond > 0);
  holding_->SetIdle(state_ == State::kIdle || (state_ == State::kReading && !header_done_));
  return holding_->Set(shared_->connection_bytes + static_cast<int64_t>(beyond));
}

// Somebody else needs the room, and this client holds most.
void ServerConnection::OnCut() {
  switch (state_) {
    case State::kReading:
      // What it holds is not charged any more: only so many at a time are told.
      if (!admitted_ || ++shared_->num_told > kMaxToldAtOnce) {
        if (admitted_) --shared_->num_told;
        return Close();
      }
      admitted_ = false;
      Refuse(503, std::string(Charge(0).message()));
      static_cast<void>(holding_->Set(0));  // It is gone.
      return;
    case State::kAnswering:
      shared_->on_slow_reader();
      return Close();
    case State::kIdle:
    case State::kDiscarding:
    case State::kClosed:
      return Close();
  }
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
  // A refusal is small, and cutting it off would not say why.
  if (!Charge(bytes.size()).ok() && !discard_after_) {
    shared_->on_slow_reader();
    return Close();
  }
  unsent_ += bytes;
  WriteSoon();
}

// Not at once: what is appended before goes out with it, and whoever writes does not expect the
// answer to be over when it returns.
void ServerConnection::WriteSoon() {
  if (std::exchange(writing_, true)) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->WriteMore(); });
}

void ServerConnection::WriteMore() {
  if (state_ == State::kClosed) return;
  if (sending_.empty()) sending_.swap(unsent_);
  if (!sending_.empty()) {
    const ssize_t done =
        stream_.Write(std::string_view(sending_).substr(num_written_).substr(0, kMaxWriteBytes));
    if (done == SocketStream::kLost) return Close();
    if (done == SocketStream::kWouldBlock) return AwaitReader();
    OnWritten(static_cast<size_t>(done));
  }
  writing_ = false;
  if (!sending_.empty() || !unsent_.empty()) {
    WriteSoon();  // Others have their turn.
  } else if (complete_) {
    EndAnswer();
  }
}

// Only who does not read has a deadline: it costs more than a write.
void ServerConnection::AwaitReader() {
  if (!std::exchange(blocked_, true) && state_ == State::kAnswering) {
    SetDeadline(shared_->times.write);
  }
  Await(stream_.write_awaits(), &ServerConnection::OnWritable);
}

void ServerConnection::OnWritable(const error_code& failed) {
  if (state_ == State::kClosed) return;
  if (failed) return Close();
  WriteMore();
}

void ServerConnection::OnWritten(size_t size) {
  if (std::exchange(blocked_, false) && state_ == State::kAnswering) ClearDeadline();
  num_written_ += size;
  if (num_written_ < sending_.size()) return;
  std::string().swap(sending_);  // An idle connection keeps nothing.
  num_written_ = 0;
  static_cast<void>(Charge(0));
}

void ServerConnection::EndAnswer() {
  exchange_->Release();
  exchange_.reset();
  left_ = nullptr;
  // What still came after a close would make the kernel drop what the client has yet to read.
  const bool ending = shared_->phase == HttpShared::Phase::kEnding;
  if (discard_after_ || !keep_alive_ || ending) return Discard();
  WaitForRequest();
}

// What the client still sends is read and dropped, so that it gets to the answer.
void ServerConnection::Discard() {
  state_ = State::kDiscarding;
  static_cast<void>(Charge(0));  // From now on it may be cut.
  stream_.EndWriting();
  SetDeadline(shared_->draining() ? shared_->times.discard_in_drain : shared_->times.discard);
}

void ServerConnection::Close() {
  const State before = std::exchange(state_, State::kClosed);
  if (before == State::kClosed) return;
  if (before == State::kIdle) stream_.SayGoodbye();  // Else something is cut off.
  stream_.Detach();
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

void ServerConnection::SetDeadline(std::chrono::milliseconds time) {
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
