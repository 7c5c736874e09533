#include "runtime/transport/ucx/ucx_transport.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/entropy.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/transport/lost_callback.h"
#include "runtime/transport/ucx/shared_links.h"
#include "runtime/transport/ucx/ucx_links.h"
#include "runtime/transport/ucx/ucx_slots.h"

namespace tandem {

namespace {

// While UCX holds something of ours it may need progress that no event announces.
constexpr int kBusyPollMs = 1;
constexpr auto kShutdownGrace = std::chrono::seconds(1);

// `Links` is SharedLinks or UcxLinks.
template <typename Links>
class Outbound final : public KvOutbound {
 public:
  Outbound(UcxTransport* transport, Links* links, const UcxAddress& local,
           std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport),
        links_(links),
        link_(local.link),
        address_(EncodeUcxAddress(local)),
        on_lost_(std::move(on_lost)) {}

  ~Outbound() override {
    on_lost_->Clear();
    transport_->Post([links = links_, link = link_] { links->CloseOutbound(link); });
  }

  const std::string& address() const override { return address_; }

  void Send(const FrameHeader& header, int32_t block, uint64_t send_id) override {
    transport_->Post([links = links_, link = link_, header, block, send_id] {
      links->Send(link, header, block, send_id);
    });
  }
  void Withdraw(uint64_t send_id) override {
    transport_->Post([links = links_, link = link_, send_id] { links->Withdraw(link, send_id); });
  }

 private:
  UcxTransport* const transport_;
  Links* const links_;
  const uint64_t link_;
  const std::string address_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
};

}  // namespace

// Which of two ends shares memory with the other, or why neither path exists.
static absl::StatusOr<bool> ChoosePath(const UcxAddress& local, const UcxAddress& remote) {
  if (remote.block_bytes != local.block_bytes) {
    return absl::FailedPreconditionError(absl::StrFormat("the peer's blocks have %d bytes, ours %d",
                                                         remote.block_bytes, local.block_bytes));
  }
  if (remote.device != local.device) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the peer's KV pool is in %s memory and ours in %s: UCX moves blocks between pools of one "
        "kind; --transport grpc moves these",
        remote.device ? "a device's" : "the host's", local.device ? "a device's" : "the host's"));
  }
  if (remote.host == local.host && !local.socket_name.empty() && !remote.socket_name.empty()) {
    return true;
  }
  if (local.network && remote.network) return false;
  return absl::FailedPreconditionError(
      "the peer shares no memory with this process (another host, or another /dev/shm) and no "
      "interface is named for UCX on both: set --ucx-devices, or --transport grpc");
}

namespace {

class Inbound final : public KvInbound {
 public:
  Inbound(UcxTransport* transport, SharedLinks* shared_links, UcxLinks* links, std::string peer,
          const UcxAddress& local, std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport),
        shared_links_(shared_links),
        links_(links),
        peer_(std::move(peer)),
        local_(local),
        address_(EncodeUcxAddress(local)),
        on_lost_(std::move(on_lost)) {}

  ~Inbound() override {
    on_lost_->Clear();
    transport_->Post([shared_links = shared_links_, links = links_, link = local_.link] {
      shared_links->CloseInbound(link);
      links->CloseInbound(link);
    });
  }

  const std::string& address() const override { return address_; }

  void Attach(const std::string& sender_address) override {
    absl::StatusOr<UcxAddress> remote = DecodeUcxAddress(sender_address);
    absl::StatusOr<bool> shared =
        remote.ok() ? ChoosePath(local_, *remote) : absl::StatusOr<bool>(remote.status());
    transport_->Post([shared_links = shared_links_, peer = peer_, link = local_.link,
                      on_lost = on_lost_, remote = std::move(remote), shared = std::move(shared)] {
      if (!shared.ok()) {
        on_lost->Call(shared.status());
      } else if (*shared) {
        shared_links->AttachInbound(link, peer, *remote, on_lost);
      }  // Over the network only the sender connects.
    });
  }

 private:
  UcxTransport* const transport_;
  SharedLinks* const shared_links_;
  UcxLinks* const links_;
  const std::string peer_;
  const UcxAddress local_;
  const std::string address_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(const UcxOptions& options,
                                                                   KvReceiver* receiver,
                                                                   Listener* listener) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<UcxContext> context, UcxContext::Create(options));
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<SharedLinks> shared_links,
                          SharedLinks::Create(context.get(), options.secret, receiver, listener));
  std::unique_ptr<UcxSlots> slots;
  if (options.pool.memory == MemoryKind::kDevice) {
    TANDEM_ASSIGN_OR_RETURN(slots, UcxSlots::Create(context.get()));
  }
  auto links = std::make_unique<UcxLinks>(context.get(), std::move(slots), receiver, listener);
  std::unique_ptr<UcxTransport> transport(new UcxTransport(std::move(context), options, wake_fd));
  transport->shared_links_ = std::move(shared_links);
  transport->links_ = std::move(links);
  transport->thread_ = std::thread([self = transport.get()] { self->Run(); });
  return transport;
}

UcxTransport::UcxTransport(std::unique_ptr<UcxContext> context, const UcxOptions& options,
                           int wake_fd)
    : context_(std::move(context)),
      network_(!options.devices.empty()),
      shared_memory_(options.shares_memory()),
      host_id_(SharedMemoryHostId()),
      wake_fd_(wake_fd) {}

UcxTransport::~UcxTransport() {
  if (thread_.joinable()) {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
    }
    const uint64_t one = 1;
    TANDEM_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  // What UCX still holds comes back here at the latest, to records that are still there.
  context_->CloseWorker();
  links_.reset();
  close(wake_fd_);
}

UcxAddress UcxTransport::LocalAddress(uint64_t link) const {
  return {.link = link,
          .host = host_id_,
          .worker_address = context_->worker_address(),
          .network = network_,
          .device = context_->pool().memory == MemoryKind::kDevice,
          .socket_name = shared_memory_ ? shared_links_->socket_name() : "",
          .pool_key = context_->pool_key(),
          .pool_base = context_->pool_address(),
          .block_bytes = context_->pool().kv.block_bytes,
          .num_blocks = context_->pool().kv.num_blocks};
}

absl::StatusOr<std::unique_ptr<KvInbound>> UcxTransport::OpenInbound(const std::string& peer,
                                                                     const std::string& peer_target,
                                                                     LostCallback on_lost) {
  const uint64_t link = RandomIdentity();
  auto once = std::make_shared<LostCallbackOnce>(std::move(on_lost));
  Post([links = links_.get(), link, peer, once] { links->OpenInbound(link, peer, once); });
  return std::make_unique<Inbound>(this, shared_links_.get(), links_.get(), peer,
                                   LocalAddress(link), std::move(once));
}

absl::StatusOr<std::unique_ptr<KvOutbound>> UcxTransport::OpenOutbound(
    const std::string& receiver_address, LostCallback on_lost) {
  TANDEM_ASSIGN_OR_RETURN(const UcxAddress remote, DecodeUcxAddress(receiver_address));
  const uint64_t link = RandomIdentity();
  const UcxAddress local = LocalAddress(link);
  TANDEM_ASSIGN_OR_RETURN(const bool shared, ChoosePath(local, remote));
  auto once = std::make_shared<LostCallbackOnce>(std::move(on_lost));
  if (shared) {
    Post([links = shared_links_.get(), link, remote, once] {
      links->OpenOutbound(link, remote, once);
    });
    return std::make_unique<Outbound<SharedLinks>>(this, shared_links_.get(), local,
                                                   std::move(once));
  }
  Post([links = links_.get(), link, remote, once] { links->OpenOutbound(link, remote, once); });
  return std::make_unique<Outbound<UcxLinks>>(this, links_.get(), local, std::move(once));
}

void UcxTransport::Post(std::function<void()> command) {
  bool was_empty = false;
  {
    MutexLock lock(&mu_);
    was_empty = commands_.empty();
    commands_.push_back(std::move(command));
  }
  if (!was_empty) return;
  const uint64_t one = 1;
  TANDEM_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one)) << std::strerror(errno);
}

bool UcxTransport::RunCommands() {
  std::vector<std::function<void()>> commands;
  bool stopping = false;
  {
    MutexLock lock(&mu_);
    commands.swap(commands_);
    stopping = stopping_;  // Nothing is posted after it is set.
  }
  for (const std::function<void()>& command : commands) command();
  return !stopping;
}

void UcxTransport::Run() {
  pthread_setname_np(pthread_self(), "kv-ucx");
  links_->Begin();
  while (true) {
    const bool progressed = network_ && ucp_worker_progress(context_->worker()) != 0;
    // In between: whoever sends on a link has been told its number after its opening was posted.
    if (!RunCommands()) break;
    const bool received = network_ && links_->Receive();
    links_->Tend();
    Wait(progressed || received);
  }
  shared_links_->CloseAll();
  links_->CloseAll();
  const auto end = std::chrono::steady_clock::now() + kShutdownGrace;
  while (!links_->Quiet() && std::chrono::steady_clock::now() < end) {
    ucp_worker_progress(context_->worker());
    links_->Receive();
    links_->Tend();
  }
  if (!links_->Quiet()) LogWarning("UCX did not complete everything before its end");
}

void UcxTransport::Wait(bool busy) {
  int timeout_ms = -1;
  if (busy) {
    timeout_ms = 0;
  } else if (network_) {
    const ucs_status_t armed = ucp_worker_arm(context_->worker());
    if (armed == UCS_ERR_BUSY) {
      timeout_ms = 0;  // Something came in between.
    } else if (armed != UCS_OK || !links_->Quiet()) {
      timeout_ms = kBusyPollMs;
    }
  }
  polled_.clear();
  polled_.push_back({.fd = wake_fd_, .events = POLLIN, .revents = 0});
  if (network_) polled_.push_back({.fd = context_->event_fd(), .events = POLLIN, .revents = 0});
  shared_links_->AppendPollFds(&polled_);
  poll(polled_.data(), polled_.size(), timeout_ms);
  uint64_t count = 0;
  if ((polled_[0].revents & POLLIN) != 0 && read(wake_fd_, &count, sizeof(count)) < 0) {
    TANDEM_CHECK(errno == EAGAIN) << std::strerror(errno);
  }
  shared_links_->Handle(polled_);
}

}  // namespace tandem
