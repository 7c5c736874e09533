#include "runtime/transport/ucx/shared_links.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/entropy.h"
#include "runtime/base/status_macros.h"
#include "runtime/transport/frame_queue.h"
#include "runtime/transport/link_probe.h"
#include "runtime/transport/ucx/huge_view.h"
#include "runtime/transport/ucx/socket_greeting.h"

namespace tandem {

namespace {

constexpr char kMemoryPath[] = "shared memory";
// Connections that are accepted at once. A full backlog would refuse peers, so that is as long as
// the kernel allows.
constexpr int kAcceptsAtOnce = 128;
constexpr int64_t kPageBytes = 4096;  // The smallest.
// Connections without an attached link: what hangs up is gone two rounds after it was accepted.
constexpr size_t kMaxStrangers = 2 * kAcceptsAtOnce;
constexpr int kOffersAtOnce = 8;  // One link's, before others get their turn.

absl::Status SocketError(const char* what) {
  return absl::UnavailableError(absl::StrFormat("KV socket: %s: %s", what, std::strerror(errno)));
}

absl::Status PeerGone() { return absl::UnavailableError("the peer process is gone"); }

sockaddr_un AbstractAddress(const std::string& name, socklen_t* length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);  // A leading zero: no file.
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

// The process that connected, or that listens where we connected, runs as our user.
bool SameUser(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace

// One packet from sender to receiver, after the greeting: a frame's header, and where its payload
// can be read.
struct SharedLinks::Offer {
  uint64_t record = 0;  // Comes back as the acknowledgement.
  uint32_t block = 0;
  uint8_t header[kFrameHeaderBytes] = {};
};

struct SharedLinks::Outbound {
  std::string socket_name;  // The receiver's.
  SocketGreeting greeting;
  std::shared_ptr<LostCallbackOnce> on_lost;
  int fd = -1;  // -1: broken.
  bool greeted = false;
  bool answered = false;  // With a proof.
  FrameQueue waiting;
  std::map<uint64_t, uint64_t> unacknowledged;  // Record to send id.
  uint64_t next_record = 1;
};

struct SharedLinks::Inbound {
  UcxAddress remote;
  std::shared_ptr<LostCallbackOnce> on_lost;
  LinkProbe probe;
  int fd = -1;
  bool broken = false;
  ucp_rkey_h key = nullptr;
  const std::byte* pool = nullptr;  // The sender's, mapped.
  HugeView view;                    // Where `pool` is, if it could be mapped again.
};

absl::StatusOr<std::unique_ptr<SharedLinks>> SharedLinks::Create(UcxContext* context,
                                                                 const FleetSecret& secret,
                                                                 KvReceiver* receiver,
                                                                 KvTransport::Listener* listener) {
  std::unique_ptr<SharedLinks> links(new SharedLinks(context, secret, receiver, listener));
  TANDEM_RETURN_IF_ERROR(links->Listen());
  return links;
}

SharedLinks::SharedLinks(UcxContext* context, const FleetSecret& secret, KvReceiver* receiver,
                         KvTransport::Listener* listener)
    : context_(context),
      secret_(secret),
      listener_(listener),
      sink_(context->pool(), receiver, listener),
      scratch_(static_cast<size_t>(context->pool().kv.block_bytes)) {}

SharedLinks::~SharedLinks() {
  TANDEM_CHECK(outbound_.empty() && inbound_.empty()) << "links outlive their transport";
  for (const int fd : strangers_) close(fd);
  for (const auto& [link, fd] : early_) close(fd);
  if (listen_fd_ >= 0) close(listen_fd_);
  if (spare_fd_ >= 0) close(spare_fd_);
}

absl::Status SharedLinks::Listen() {
  socket_name_ = absl::StrFormat("tandem-kv-%d-%016x", getpid(), RandomIdentity());
  listen_fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listen_fd_ < 0) return SocketError("socket");
  socklen_t length = 0;
  const sockaddr_un address = AbstractAddress(socket_name_, &length);
  if (bind(listen_fd_, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return SocketError("bind");
  }
  if (listen(listen_fd_, SOMAXCONN) != 0) return SocketError("listen");
  spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return absl::OkStatus();
}

// ---- Sending ----

void SharedLinks::OpenOutbound(uint64_t link, const UcxAddress& remote,
                               std::shared_ptr<LostCallbackOnce> on_lost) {
  auto opened = std::make_unique<Outbound>();
  Outbound* const outbound = opened.get();
  outbound->socket_name = remote.socket_name;
  outbound->greeting = MakeGreeting(secret_, remote.socket_name, remote.link);
  outbound->on_lost = std::move(on_lost);
  outbound_.emplace(link, std::move(opened));
  outbound->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  socklen_t length = 0;
  const sockaddr_un address = AbstractAddress(remote.socket_name, &length);
  if (outbound->fd < 0 ||
      connect(outbound->fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    Break(outbound, SocketError("connect"));
    return;
  }
  if (!SameUser(outbound->fd)) {
    Break(outbound, absl::UnavailableError("KV socket: another user's process has its name"));
    return;
  }
  Pump(outbound);
}

void SharedLinks::Send(uint64_t link, const FrameHeader& header, int32_t block, uint64_t send_id) {
  const auto found = outbound_.find(link);
  if (found == outbound_.end() || found->second->fd < 0) {
    listener_->OnFrameSent(send_id, false);
    return;
  }
  TANDEM_CHECK(block >= 0 && block < context_->pool().kv.num_blocks)
      << "block " << block << " of " << context_->pool().kv.num_blocks;
  found->second->waiting.Push(header, block, send_id);
  Pump(found->second.get());
}

void SharedLinks::Withdraw(uint64_t link, uint64_t send_id) {
  const auto found = outbound_.find(link);
  if (found == outbound_.end()) return;
  if (found->second->waiting.Withdraw(send_id)) listener_->OnFrameSent(send_id, false);
}

void SharedLinks::Pump(Outbound* link) {
  const auto send_packet = [link](const auto& packet) {
    return send(link->fd, &packet, sizeof(packet), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(packet);
  };
  if (!link->greeted) link->greeted = send_packet(link->greeting);
  while (link->answered && !link->waiting.empty() && link->unacknowledged.size() < kWindow) {
    const FrameQueue::Frame& frame = link->waiting.front();
    Offer offer{.record = link->next_record, .block = static_cast<uint32_t>(frame.block)};
    PackFrameHeader(frame.header, offer.header);
    if (!send_packet(offer)) break;  // Full: POLLOUT brings us back. Broken: POLLHUP does.
    link->unacknowledged.emplace(link->next_record++, frame.send_id);
    link->waiting.Pop();
  }
}

void SharedLinks::ReadAnswer(Outbound* link) {
  char answer[kProofBytes + 1];
  const ssize_t got = recv(link->fd, answer, sizeof(answer), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    Break(link, PeerGone());
  } else if (!CheckAnswer(secret_, link->socket_name, link->greeting,
                          std::string_view(answer, static_cast<size_t>(got)))) {
    Break(link, absl::UnavailableError("KV socket: the receiver has not proven itself"));
  } else {
    link->answered = true;
  }
}

void SharedLinks::ReadAcks(Outbound* link) {
  if (!link->answered) ReadAnswer(link);
  if (!link->answered) return;
  uint64_t record = 0;
  while (link->fd >= 0) {
    const ssize_t got = recv(link->fd, &record, sizeof(record), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got != sizeof(record)) {
      Break(link, PeerGone());
      return;
    }
    const auto acknowledged = link->unacknowledged.extract(record);
    if (acknowledged) listener_->OnFrameSent(acknowledged.mapped(), true);
  }
  Pump(link);
}

// A receiver that still reads a block that has gone back finds a wrong checksum; nothing remote
// ever writes.
void SharedLinks::Break(Outbound* link, const absl::Status& why) {
  if (link->fd >= 0) close(std::exchange(link->fd, -1));
  for (const auto& [record, send_id] : std::exchange(link->unacknowledged, {})) {
    listener_->OnFrameSent(send_id, false);
  }
  for (const uint64_t send_id : link->waiting.Clear()) listener_->OnFrameSent(send_id, false);
  link->on_lost->Call(why);
}

void SharedLinks::CloseOutbound(uint64_t link) {
  const auto found = outbound_.find(link);
  if (found == outbound_.end()) return;
  Break(found->second.get(), absl::CancelledError("closed"));
  outbound_.erase(found);
}

// ---- Receiving ----

void SharedLinks::Accept() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
      Decline();
      return;
    }
    if (fd < 0) return;
    if (!SameUser(fd) || strangers_.size() + early_.size() >= kMaxStrangers) {
      close(fd);
      continue;
    }
    strangers_.push_back(fd);
  }
}

// Out of descriptors: gives the spare one to the caller and hangs up, rather than find it waiting
// for ever.
void SharedLinks::Decline() {
  close(spare_fd_);
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) close(fd);
  spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void SharedLinks::Identify(int fd) {
  std::erase(strangers_, fd);
  SocketGreeting greeting;
  std::optional<std::string> answer;
  if (recv(fd, &greeting, sizeof(greeting), MSG_DONTWAIT | MSG_TRUNC) == sizeof(greeting)) {
    answer = AnswerGreeting(secret_, socket_name_, greeting);
  }
  if (!answer.has_value() ||
      send(fd, answer->data(), answer->size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
          static_cast<ssize_t>(answer->size())) {
    close(fd);
    return;
  }
  const auto link = inbound_.find(greeting.link);
  if (link == inbound_.end()) {
    if (!early_.emplace(greeting.link, fd).second) close(fd);
  } else if (link->second->fd < 0 && !link->second->broken) {
    link->second->fd = fd;
  } else {
    close(fd);
  }
}

void SharedLinks::AttachInbound(uint64_t link, const std::string& peer, const UcxAddress& remote,
                                std::shared_ptr<LostCallbackOnce> on_lost) {
  auto attached =
      std::make_unique<Inbound>(Inbound{.remote = remote,
                                        .on_lost = std::move(on_lost),
                                        .probe = LinkProbe(listener_, peer, kMemoryPath)});
  Inbound* const inbound = attached.get();
  if (!inbound_.emplace(link, std::move(attached)).second) return;
  if (const auto early = early_.extract(link)) inbound->fd = early.mapped();
  if (const absl::Status mapped = Map(inbound); !mapped.ok()) {
    Break(inbound, mapped);
    return;
  }
  Probe(inbound);
}

absl::Status SharedLinks::Map(Inbound* link) {
  ucp_ep_h& endpoint = endpoints_[link->remote.worker_address];
  if (endpoint == nullptr) {
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(link->remote.worker_address.data());
    const ucs_status_t status = ucp_ep_create(context_->worker(), &params, &endpoint);
    if (status != UCS_OK) {
      endpoints_.erase(link->remote.worker_address);
      return UcxError("connecting to the peer", status);
    }
  }
  void* mapped = nullptr;
  ucs_status_t status = ucp_ep_rkey_unpack(endpoint, link->remote.pool_key.data(), &link->key);
  if (status == UCS_OK) status = ucp_rkey_ptr(link->key, link->remote.pool_base, &mapped);
  if (status != UCS_OK) return UcxError("mapping the peer's pool", status);
  link->pool = static_cast<const std::byte*>(mapped);
  // The sender made its pages large; here they are mapped so.
  absl::StatusOr<HugeView> view = HugeView::Of(
      mapped, static_cast<size_t>(context_->pool().kv.block_bytes * link->remote.num_blocks));
  if (view.ok()) {
    link->view = *std::move(view);
    link->pool = link->view.data();
  }
  return absl::OkStatus();
}

void SharedLinks::Probe(Inbound* link) {
  const int64_t block_bytes = context_->pool().kv.block_bytes;
  const int32_t count = std::min(NumProbes(block_bytes), link->remote.num_blocks);
  // Faults the pages in, and leaves what is in them where blocks are: not in a cache of this core.
  const volatile std::byte* const blocks = link->pool;
  for (int64_t at = 0; at < count * block_bytes; at += kPageBytes) static_cast<void>(blocks[at]);
  const double begin = SecondsNow();
  for (int32_t i = 0; i < count; ++i) {
    Crc32cCopy(scratch_.data(), link->pool + i * block_bytes, scratch_.size());
  }
  const double seconds = std::max(SecondsNow() - begin, 1e-9);
  link->probe.Report(static_cast<double>(count * block_bytes) / seconds);
}

void SharedLinks::ReadOffers(Inbound* link) {
  for (int i = 0; i < kOffersAtOnce && !link->broken; ++i) {
    Offer offer;
    const ssize_t got = recv(link->fd, &offer, sizeof(offer), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const absl::Status taken = got == sizeof(offer) ? Take(link, offer) : PeerGone();
    if (!taken.ok()) Break(link, taken);
  }
}

absl::Status SharedLinks::Take(Inbound* link, const Offer& offer) {
  const KvPool& pool = context_->pool();
  const FrameHeader header = UnpackFrameHeader(offer.header);
  if (offer.block >= static_cast<uint32_t>(link->remote.num_blocks)) {
    return absl::InvalidArgumentError(absl::StrFormat("KV offer: block %d, the pool has %d",
                                                      offer.block, link->remote.num_blocks));
  }
  TANDEM_RETURN_IF_ERROR(sink_.Check(header));
  if (std::optional<FrameSink::Landing> landing = sink_.Begin(header)) {
    landing->Complete(Crc32cCopy(landing->data(),
                                 link->pool + int64_t{offer.block} * pool.kv.block_bytes,
                                 header.length_bytes));
  }
  // Never more than kWindow of them wait, which fits any socket's buffer.
  if (send(link->fd, &offer.record, sizeof(offer.record), MSG_DONTWAIT | MSG_NOSIGNAL) !=
      sizeof(offer.record)) {
    return SocketError("acknowledge");
  }
  return absl::OkStatus();
}

void SharedLinks::Break(Inbound* link, const absl::Status& why) {
  if (link->broken) return;
  link->broken = true;
  if (link->fd >= 0) close(std::exchange(link->fd, -1));
  link->pool = nullptr;
  link->view = {};
  if (link->key != nullptr) ucp_rkey_destroy(std::exchange(link->key, nullptr));
  link->on_lost->Call(why);
}

void SharedLinks::CloseInbound(uint64_t link) {
  if (const auto early = early_.extract(link)) close(early.mapped());
  const auto found = inbound_.find(link);
  if (found == inbound_.end()) return;
  Break(found->second.get(), absl::CancelledError("closed"));
  found->second->probe.Close();
  inbound_.erase(found);
}

void SharedLinks::CloseAll() {
  while (!outbound_.empty()) CloseOutbound(outbound_.begin()->first);
  while (!inbound_.empty()) CloseInbound(inbound_.begin()->first);
}

// ---- Waiting ----

void SharedLinks::AppendPollFds(std::vector<pollfd>* fds) const {
  fds->push_back({.fd = listen_fd_, .events = POLLIN, .revents = 0});
  for (const int fd : strangers_) fds->push_back({.fd = fd, .events = POLLIN, .revents = 0});
  // What they offer is read once their link is attached; that they hang up is heard at once.
  for (const auto& [id, fd] : early_) fds->push_back({.fd = fd, .events = 0, .revents = 0});
  for (const auto& [id, link] : outbound_) {
    if (link->fd < 0) continue;
    const bool held_up = !link->greeted || (link->answered && !link->waiting.empty() &&
                                            link->unacknowledged.size() < kWindow);
    fds->push_back({.fd = link->fd,
                    .events = static_cast<short>(held_up ? POLLIN | POLLOUT : POLLIN),
                    .revents = 0});
  }
  for (const auto& [id, link] : inbound_) {
    if (link->fd >= 0) fds->push_back({.fd = link->fd, .events = POLLIN, .revents = 0});
  }
}

void SharedLinks::Handle(const std::vector<pollfd>& fds) {
  const auto ready = [&fds](int fd) {
    return fd >= 0 && std::any_of(fds.begin(), fds.end(), [fd](const pollfd& entry) {
             return entry.fd == fd && entry.revents != 0;
           });
  };
  for (const auto& [id, link] : outbound_) {
    if (ready(link->fd)) ReadAcks(link.get());
  }
  for (const auto& [id, link] : inbound_) {
    if (ready(link->fd)) ReadOffers(link.get());
  }
  // Before strangers are identified: those of this round only hang up.
  for (auto next = early_.begin(); next != early_.end();) {
    const auto entry = next++;
    if (!ready(entry->second)) continue;
    close(entry->second);
    early_.erase(entry);
  }
  for (const int fd : std::vector<int>(strangers_)) {
    if (ready(fd)) Identify(fd);
  }
  if (ready(listen_fd_)) Accept();
}

}  // namespace tandem
