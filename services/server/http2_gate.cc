#include "services/server/http2_gate.h"

#include <grpcpp/server_posix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <future>
#include <list>
#include <thread>
#include <utility>

#include "runtime/base/mutex.h"
#include "services/server/gate_connection.h"
#include "services/server/listen_socket.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTickPeriod{100};
constexpr std::chrono::milliseconds kPauseAfterAcceptError{50};
constexpr std::chrono::milliseconds kGoodbyePoll{2};
constexpr int kAcceptsInARow = 64;

}  // namespace

class Http2Gate::Impl {
 public:
  Impl(const Http2GateOptions& options, ListenSocket socket)
      : socket_(std::move(socket)),
        listener_(io_, socket_.Release()),
        retry_(io_),
        tick_(io_),
        goodbye_(io_) {
    shared_.options = options;
    shared_.connection_bytes = std::max(kGateConnectionBytes + options.tls.connection_bytes(),
                                        options.budget->limit_bytes() / options.max_connections);
    shared_.io = &io_;
    shared_.calls = std::make_shared<UnservedCalls>(
        options.max_unserved, [this] { asio::post(io_, [this] { GiveTurns(); }); });
    shared_.on_closed = [this] {
      if (--num_open_ > 0) return;
      MutexLock lock(&mu_);  // The destructor either sees the count or is waiting.
      none_open_.SignalAll();
    };
  }

  ~Impl() {
    StopAccepting();
    {
      const auto end = Clock::now() + kGateFlushTimeout;
      MutexLock lock(&mu_);
      while (num_open_ > 0 && none_open_.WaitUntil(&mu_, end)) {
      }
    }
    io_.stop();
    if (thread_.joinable()) thread_.join();
    for (const auto& connection : connections_) connection->Abandon();
    shared_.turns = {};
    shared_.calls->Stop();
  }

  void Serve(grpc::Server* server) {
    shared_.give_to_grpc = [server](int descriptor) {
      grpc::AddInsecureChannelFromFd(server, descriptor);
    };
    Accept();
    Tick();
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "gate");
      io_.run();
    });
  }

  void StopAccepting() {
    if (!thread_.joinable()) return;
    std::promise<void> stopped;
    asio::post(io_, [this, &stopped] {
      error_code ignored;
      listener_.close(ignored);
      retry_.cancel();
      for (const auto& connection : connections_) {
        if (!connection->greeted()) connection->Close();
      }
      stopped.set_value();
    });
    stopped.get_future().wait();
  }

  void SayGoodbye() {
    asio::post(io_, [this] {
      for (const auto& connection : connections_) connection->SayGoodbye();
      AwaitGoodbyes(Clock::now() + shared_.options.goodbye_timeout);
    });
  }

  void CloseIdle() {
    asio::post(io_, [this] { shared_.closes_idle = true; });
  }

  bool goodbye_over() const { return goodbye_over_; }

  int port() const { return socket_.port(); }
  int num_unserved() const { return shared_.calls->count(); }

 private:
  void Accept() {
    listener_.async_wait(
        asio::posix::stream_descriptor::wait_read, [this](const error_code& error) {
          if (error || !listener_.is_open()) return;
          for (int i = 0; i < kAcceptsInARow; ++i) {
            sockaddr_storage address{};
            socklen_t size = sizeof(address);
            const int descriptor =
                accept4(listener_.native_handle(), reinterpret_cast<sockaddr*>(&address), &size,
                        SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (descriptor >= 0) {
              Admit(descriptor, address);
            } else if (errno == EAGAIN) {
              break;
            } else if (errno != EINTR && errno != ECONNABORTED) {  // Out of descriptors.
              retry_.expires_after(kPauseAfterAcceptError);
              retry_.async_wait([this](const error_code& cancelled) {
                if (!cancelled) Accept();
              });
              return;
            }
          }
          Accept();
        });
  }

  void Admit(int descriptor, const sockaddr_storage& address) {
    if (address.ss_family != AF_UNIX) {
      const int yes = 1;
      setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      NoticeLostPeers(descriptor, shared_.options.keepalive_time, shared_.options.keepalive_timeout,
                      shared_.options.unread_timeout);
    }
    const auto connection =
        std::make_shared<GateConnection>(&shared_, descriptor, NameOfPeer(address));
    if (!connection->Begin()) return;
    ++num_open_;
    connections_.push_back(connection);
  }

  void Tick() {
    const auto now = Clock::now();
    connections_.remove_if([&](const auto& connection) { return !connection->Tick(now); });
    tick_.expires_after(kTickPeriod);
    tick_.async_wait([this](const error_code& cancelled) {
      if (!cancelled) Tick();
    });
  }

  void AwaitGoodbyes(Clock::time_point until) {
    const bool all =
        shared_.calls->count() == 0 &&
        std::all_of(connections_.begin(), connections_.end(),
                    [](const auto& connection) { return connection->goodbye_heard(); });
    if (all || Clock::now() >= until) {
      goodbye_over_ = true;
      return;
    }
    goodbye_.expires_after(kGoodbyePoll);
    goodbye_.async_wait([this, until](const error_code&) { AwaitGoodbyes(until); });
  }

  void GiveTurns() {
    const auto pick = [this](const std::string& client, const auto& queue) {
      return shared_.calls->HasRoomOrAwait(client) ? 0 : queue.size();
    };
    while (const auto next = shared_.turns.Next(pick)) (*next)->TakeTurn();
  }

  GateShared shared_;
  Mutex mu_;
  CondVar none_open_;
  std::atomic<int> num_open_{0};
  std::atomic<bool> goodbye_over_{false};
  ListenSocket socket_;
  asio::io_context io_{1};  // After what connections use: it destroys the last of them.
  asio::posix::stream_descriptor listener_;
  asio::steady_timer retry_, tick_, goodbye_;
  std::list<std::shared_ptr<GateConnection>> connections_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Http2Gate>> Http2Gate::Open(const Http2GateOptions& options) {
  absl::StatusOr<ListenSocket> socket = ListenSocket::Open(options.address);
  if (!socket.ok()) return socket.status();
  return std::unique_ptr<Http2Gate>(
      new Http2Gate(std::make_unique<Impl>(options, *std::move(socket))));
}

Http2Gate::Http2Gate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Http2Gate::~Http2Gate() = default;
int Http2Gate::port() const { return impl_->port(); }
void Http2Gate::Serve(grpc::Server* server) { impl_->Serve(server); }
void Http2Gate::StopAccepting() { impl_->StopAccepting(); }
void Http2Gate::SayGoodbye() { impl_->SayGoodbye(); }
bool Http2Gate::goodbye_over() const { return impl_->goodbye_over(); }
void Http2Gate::CloseIdle() { impl_->CloseIdle(); }
int Http2Gate::num_unserved() const { return impl_->num_unserved(); }

}  // namespace tandem
