#include "services/http/http_server.h"

#include <pthread.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <future>
#include <list>
#include <thread>
#include <utility>

#include "runtime/base/mutex.h"
#include "runtime/base/status_macros.h"
#include "services/http/http_limits.h"
#include "services/http/server_connection.h"
#include "services/server/listen_socket.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPauseAfterAcceptError{50};
// More than the kernel lets wait (net.core.somaxconn), unless somebody has raised it.
constexpr int kMaxQueued = 4096;

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpServerOptions& options, HttpHandler* handler)
      : options_(options),
        io_(options.num_threads),
        accept_strand_(asio::make_strand(io_)),
        acceptor_(accept_strand_),
        retry_(accept_strand_) {
    shared_.handler = handler;
    shared_.times = options.times;
    shared_.budget = options.budget;
    // As much as one takes, and enough that the budget is used up by the time too many are open.
    shared_.connection_bytes = std::max(kHttpConnectionBytes + options.tls.connection_bytes(),
                                        options.budget->limit_bytes() / options.max_connections);
    shared_.tls = options.tls;
    shared_.on_slow_reader = [this] {
      if (options_.on_slow_reader) options_.on_slow_reader();
    };
    shared_.on_closed = [this] { Count(-1); };
  }

  ~Impl() { Stop({}); }

  absl::Status Listen() {
    TANDEM_ASSIGN_OR_RETURN(ListenSocket socket, ListenSocket::Open(options_.address.ToString()));
    port_ = socket.port();
    const bool v6 = options_.address.ip.find(':') != std::string::npos;
    error_code error;
    acceptor_.assign(v6 ? tcp::v6() : tcp::v4(), socket.descriptor(), error);
    if (error) return absl::UnavailableError(error.message());
    socket.Release();
    asio::post(accept_strand_, [this] { Accept(); });
    for (int i = 0; i < options_.num_threads; ++i) {
      threads_.emplace_back([this] {
        pthread_setname_np(pthread_self(), "http");
        io_.run();
      });
    }
    return absl::OkStatus();
  }

  void BeginDrain() { Move(HttpShared::Phase::kDraining, &ServerConnection::BeginDrain); }
  void EndDrain() { Move(HttpShared::Phase::kEnding, &ServerConnection::EndDrain); }

  void Stop(Clock::time_point until) {
    if (threads_.empty()) return;
    EndDrain();
    {
      MutexLock lock(&open_mu_);
      while (num_open_ > 0 && none_open_.WaitUntil(&open_mu_, until)) {
      }
    }
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    // What handlers still hold of them must not outlive io_.
    for (const std::weak_ptr<ServerConnection>& weak : TakeConnections()) {
      if (const auto connection = weak.lock()) connection->Abandon();
    }
  }

  int port() const { return port_; }

 private:
  void Accept() {
    acceptor_.async_accept(asio::make_strand(io_),
                           [this](const error_code& error, tcp::socket socket) {
                             if (!acceptor_.is_open()) return Welcome(error, std::move(socket));
                             if (error) {  // Out of descriptors, or a client that left already.
                               retry_.expires_after(kPauseAfterAcceptError);
                               retry_.async_wait([this](const error_code& cancelled) {
                                 if (!cancelled && acceptor_.is_open()) Accept();
                               });
                               return;
                             }
                             Welcome(error, std::move(socket));
                             Accept();
                           });
  }

  void Welcome(const error_code& error, tcp::socket socket) {
    if (error) return;
    Count(+1);
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    NoticeLostPeers(socket.native_handle(), kKeepaliveTime, kKeepaliveTimeout, kWriteTimeout);
    const auto connection = std::make_shared<ServerConnection>(std::move(socket), &shared_);
    const bool admitted = connection->Admit().ok();
    // Some of those that find no room are told so; the others see their connection close.
    if (admitted || shared_.num_told <= kMaxToldAtOnce) {
      Remember(connection);
      connection->Run();
    }
  }

  // What is in the kernel's queue believes that it is connected, and may have sent its request.
  void CloseAcceptor() {
    error_code error;
    acceptor_.non_blocking(true, error);
    for (int i = 0; i < kMaxQueued && !error; ++i) {
      tcp::socket socket(asio::make_strand(io_));
      acceptor_.accept(socket, error);
      Welcome(error, std::move(socket));
    }
    acceptor_.close(error);
    retry_.cancel();
  }

  // To a phase from which there is no way back.
  void Move(HttpShared::Phase phase, void (ServerConnection::*tell)()) {
    if (shared_.phase >= phase) return;
    // Afterwards the threads end as soon as no connection is left.
    if (shared_.phase.exchange(phase) == HttpShared::Phase::kServing) {
      std::promise<void> closed;
      asio::post(accept_strand_, [this, &closed] {
        CloseAcceptor();
        closed.set_value();
      });
      closed.get_future().wait();
    }
    MutexLock lock(&mu_);
    for (const std::weak_ptr<ServerConnection>& weak : connections_) {
      if (const auto connection = weak.lock()) (*connection.*tell)();
    }
  }

  // For Move. Forgets the ended ones whenever they could be half of all.
  void Remember(const std::shared_ptr<ServerConnection>& connection) {
    MutexLock lock(&mu_);
    connections_.push_back(connection);
    if (connections_.size() > next_sweep_) {
      connections_.remove_if([](const auto& weak) { return weak.expired(); });
      next_sweep_ = 2 * connections_.size() + 64;
    }
  }

  std::list<std::weak_ptr<ServerConnection>> TakeConnections() {
    MutexLock lock(&mu_);
    return std::exchange(connections_, {});
  }

  void Count(int change) {
    const int open = num_open_.fetch_add(change) + change;
    if (options_.on_connections) options_.on_connections(open);
    if (open == 0) {
      MutexLock lock(&open_mu_);  // Stop either sees the count or is waiting.
      none_open_.SignalAll();
    }
  }

  const HttpServerOptions options_;
  HttpShared shared_;
  std::atomic<int> num_open_{0};
  Mutex open_mu_;
  CondVar none_open_;
  Mutex mu_;
  std::list<std::weak_ptr<ServerConnection>> connections_ GUARDED_BY(mu_);
  size_t next_sweep_ GUARDED_BY(mu_) = 64;
  int port_ = 0;
  asio::io_context io_;  // After what connections use: it destroys the last of them.
  asio::strand<asio::io_context::executor_type> accept_strand_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::vector<std::thread> threads_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(const HttpServerOptions& options,
                                                               HttpHandler* handler) {
  auto impl = std::make_unique<Impl>(options, handler);
  if (absl::Status status = impl->Listen(); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return impl_->port(); }
void HttpServer::BeginDrain() { impl_->BeginDrain(); }
void HttpServer::EndDrain() { impl_->EndDrain(); }
void HttpServer::Stop(Clock::time_point until) { impl_->Stop(until); }

}  // namespace tandem
