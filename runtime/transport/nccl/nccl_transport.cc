#include "runtime/transport/nccl/nccl_transport.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/entropy.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/transport/frame_queue.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/link_probe.h"
#include "runtime/transport/lost_callback.h"
#include "runtime/transport/nccl/nccl_address.h"
#include "runtime/transport/nccl/nccl_pair.h"

namespace tandem {

namespace {

constexpr int kSenderRank = 0;
constexpr int kReceiverRank = 1;
// While NCCL has something of a link's under way, which no event of the host's announces.
constexpr auto kNap = std::chrono::microseconds(50);
// Each is a port of NCCL's on which somebody is awaited.
constexpr size_t kSpareIds = 8;
constexpr auto kIdPause = std::chrono::seconds(1);
// A sender has at most NcclPair::kWindow blocks under way, and NCCL buffers a few.
constexpr size_t kMaxAnnounced = 64;  // groups

// ---- A group as it goes down the stream: a header and, as its payload, those that follow ----

std::vector<std::byte> Pack(std::span<const FrameHeader> headers) {
  std::vector<std::byte> packed(headers.size() * kFrameHeaderBytes);
  for (size_t i = 0; i < headers.size(); ++i) {
    PackFrameHeader(headers[i], &packed[i * kFrameHeaderBytes]);
  }
  return packed;
}

class FollowingHeaders final : public FramePayload {
 public:
  // A vector that moves leaves its bytes where they are.
  explicit FollowingHeaders(std::vector<std::byte> packed)
      : FramePayload(packed), packed_(std::move(packed)) {}

 private:
  const std::vector<std::byte> packed_;
};

absl::StatusOr<std::vector<FrameHeader>> GroupOf(const FrameHeader& first,
                                                 std::span<const std::string_view> following) {
  std::string bytes;
  for (const std::string_view piece : following) bytes.append(piece);
  const size_t size = 1 + bytes.size() / kFrameHeaderBytes;
  if (bytes.size() % kFrameHeaderBytes != 0 || size > NcclPair::kGroup) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: %d bytes behind a header, want further headers of %d, %d at most",
                        bytes.size(), kFrameHeaderBytes, NcclPair::kGroup - 1));
  }
  std::vector<FrameHeader> group = {first};
  while (group.size() < size) {
    group.push_back(UnpackFrameHeader(&bytes[(group.size() - 1) * kFrameHeaderBytes]));
  }
  return group;
}

}  // namespace

// ---- A link ----

class NcclTransport::Link : public std::enable_shared_from_this<Link> {
 public:
  Link(NcclTransport* transport, std::shared_ptr<LostCallbackOnce> on_lost)
      : hold_(&transport->holders_), transport_(transport), on_lost_(std::move(on_lost)) {}
  virtual ~Link() = default;

  // On the link's thread, until the link is closed or breaks.
  void Run() {
    {
      NcclPair pair(transport_->api_, transport_->options_.stall, [this] { return Nap(); });
      Close(Work(&pair));
    }
    Release();
  }
  // Whichever comes first says why.
  void Close(const absl::Status& why) EXCLUDES(mu_) {
    std::vector<uint64_t> dropped;
    {
      MutexLock lock(&mu_);
      if (std::exchange(closed_, true)) return;
      dropped = OnClosed(why);
      changed_.SignalAll();
    }
    for (const uint64_t send_id : dropped) transport_->listener_->OnFrameSent(send_id, false);
    on_lost_->Call(why);
  }

 protected:
  // Returns once the link is closed, or why it has to be.
  virtual absl::Status Work(NcclPair* pair) = 0;
  // Once, with the link just closed. Of which sends it was that wait and will not travel.
  virtual std::vector<uint64_t> OnClosed(const absl::Status& why) REQUIRES(mu_) = 0;
  // NCCL touches nothing of the link's any more.
  virtual void Release() = 0;

  // How many blocks have moved since the last call.
  static absl::StatusOr<size_t> TakeMoved(NcclPair* pair) {
    size_t all = 0;
    while (!pair->idle()) {
      TANDEM_ASSIGN_OR_RETURN(const size_t moved, pair->Passed());
      if (moved == 0) break;
      all += moved;
    }
    return all;
  }

  // For what the link's thread has to do next; `polls`: NCCL may have something, too.
  void WaitForChange(bool polls) REQUIRES(mu_) {
    if (polls) {
      changed_.WaitFor(&mu_, kNap);
    } else {
      changed_.Wait(&mu_);
    }
  }

  const Holders::Hold hold_;  // Goes last.
  NcclTransport* const transport_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
  Mutex mu_;
  CondVar changed_;
  bool closed_ GUARDED_BY(mu_) = false;

 private:
  bool Nap() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (!closed_) changed_.WaitFor(&mu_, kNap);
    return !closed_;
  }
};

// ---- Sending ----

class NcclTransport::SendLink final : public Link, public SendingLink {
 public:
  SendLink(NcclTransport* transport, const NcclUniqueId& id,
           std::shared_ptr<LostCallbackOnce> on_lost)
      : Link(transport, std::move(on_lost)), id_(id) {
    waiting_.PushProbes(transport->options_.pool.kv.block_bytes);
  }

  void Send(const FrameHeader& header, int32_t block, uint64_t send_id) override EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (!closed_) {
        waiting_.Push(header, block, send_id);
        changed_.SignalAll();
        return;
      }
    }
    transport_->listener_->OnFrameSent(send_id, false);
  }
  void Withdraw(uint64_t send_id) override EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (!waiting_.Withdraw(send_id)) return;
    }
    transport_->listener_->OnFrameSent(send_id, false);
  }
  bool Join(FrameStream* stream) override EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (closed_) return false;
      stream_ = stream;
    }
    transport_->Start(shared_from_this());
    return true;
  }
  void Close(const absl::Status& why) override { Link::Close(why); }
  void OnWritten(bool ok) override EXCLUDES(mu_) {
    if (!ok) return Close(absl::UnavailableError("the stream of KV headers broke"));
    MutexLock lock(&mu_);
    writing_ = false;
    changed_.SignalAll();
  }
  void OnStreamGone() override EXCLUDES(mu_) {
    Close(absl::UnavailableError("the stream of KV headers ended"));
    MutexLock lock(&mu_);
    stream_ = nullptr;
  }

 private:
  absl::Status Work(NcclPair* pair) override EXCLUDES(mu_) {
    TANDEM_RETURN_IF_ERROR(pair->Open(id_, kSenderRank));
    while (true) {
      TANDEM_ASSIGN_OR_RETURN(const size_t moved, TakeMoved(pair));
      for (size_t i = 0; i < moved; ++i) Complete(true);
      std::vector<const std::byte*> blocks;
      {
        MutexLock lock(&mu_);
        if (closed_) return absl::CancelledError("closed");
        // All that wait, but for whole groups: else those that went one by one while there was room
        // would do so for ever.
        const size_t group = std::min(waiting_.size(), NcclPair::kGroup);
        if (writing_ || group == 0 || group > pair->room()) {
          WaitForChange(!pair->idle());
          continue;
        }
        blocks = BeginGroup(group);
      }
      TANDEM_RETURN_IF_ERROR(pair->Send(blocks, transport_->block_bytes()));
    }
  }
  // Puts the next ones that wait under way, and their headers on the stream. Returns where their
  // blocks lie.
  std::vector<const std::byte*> BeginGroup(size_t num_blocks) REQUIRES(mu_) {
    std::vector<const std::byte*> blocks;
    std::vector<FrameHeader> headers;
    for (size_t i = 0; i < num_blocks; ++i) {
      const FrameQueue::Frame next = waiting_.Pop();
      under_way_.push_back(next);
      headers.push_back(next.header);
      blocks.push_back(next.probe() ? transport_->probe_
                                    : transport_->options_.pool.block(next.block));
    }
    writing_ = true;
    stream_->Write(headers[0],
                   std::make_unique<FollowingHeaders>(Pack(std::span(headers).subspan(1))));
    return blocks;
  }
  std::vector<uint64_t> OnClosed(const absl::Status& why) override REQUIRES(mu_) {
    if (stream_ != nullptr) stream_->End(why);
    return waiting_.Clear();
  }
  void Release() override {
    while (!under_way_.empty()) Complete(false);
  }
  // The oldest frame's block will not be read any more.
  void Complete(bool ok) {
    const FrameQueue::Frame frame = under_way_.front();
    under_way_.pop_front();
    if (!frame.probe()) transport_->listener_->OnFrameSent(frame.send_id, ok);
  }

  const NcclUniqueId id_;
  FrameQueue waiting_ GUARDED_BY(mu_);
  FrameStream* stream_ GUARDED_BY(mu_) = nullptr;
  bool writing_ GUARDED_BY(mu_) = false;
  std::deque<FrameQueue::Frame> under_way_;  // The link's thread's.
};

// ---- Receiving ----

class NcclTransport::ReceiveLink final : public Link, public FrameTarget {
 public:
  ReceiveLink(NcclTransport* transport, const std::string& peer, const NcclUniqueId& id,
              std::shared_ptr<LostCallbackOnce> on_lost)
      : Link(transport, std::move(on_lost)),
        id_(id),
        probe_(transport->listener_, peer, std::string(transport->name())) {}

  absl::Status OnFrame(const FrameHeader& header,
                       std::span<const std::string_view> payload) override EXCLUDES(mu_) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<FrameHeader> group, GroupOf(header, payload));
    MutexLock lock(&mu_);
    if (closed_) return absl::CancelledError("closed");
    for (const FrameHeader& each : group) TANDEM_RETURN_IF_ERROR(transport_->sink_.Check(each));
    if (announced_.size() >= kMaxAnnounced) {
      return absl::InvalidArgumentError(
          absl::StrFormat("frame: %d groups of headers wait for their blocks", announced_.size()));
    }
    announced_.push_back(std::move(group));
    changed_.SignalAll();
    return absl::OkStatus();
  }
  void OnEnded(const absl::Status& why) override { Close(why); }

 private:
  absl::Status Work(NcclPair* pair) override EXCLUDES(mu_) {
    TANDEM_ASSIGN_OR_RETURN(slots_, transport_->TakeSlots());
    TANDEM_RETURN_IF_ERROR(pair->Open(id_, kReceiverRank));
    while (true) {
      TANDEM_ASSIGN_OR_RETURN(const size_t moved, TakeMoved(pair));
      for (size_t i = 0; i < moved; ++i) TANDEM_RETURN_IF_ERROR(Land());
      std::vector<std::byte*> slots;
      {
        MutexLock lock(&mu_);
        if (closed_) return absl::CancelledError("closed");
        if (announced_.empty() || announced_.front().size() > pair->room()) {
          WaitForChange(!pair->idle());
          continue;
        }
        for (const FrameHeader& header : announced_.front()) {
          slots.push_back(Slot(oldest_ + under_way_.size()));
          under_way_.push_back(header);
        }
        announced_.pop_front();
      }
      TANDEM_RETURN_IF_ERROR(pair->Receive(slots, transport_->block_bytes()));
    }
  }

  // The block of the oldest header under way has arrived in its slot.
  absl::Status Land() EXCLUDES(mu_) {
    const FrameHeader header = under_way_.front();
    under_way_.pop_front();
    const std::byte* const slot = Slot(oldest_++);
    DeviceCopier* const copier = transport_->options_.pool.copier;
    if (IsProbe(header)) {
      // As long as a block takes, into the slot that no operation has.
      std::byte* const nowhere = slots_ + NcclPair::kWindow * transport_->block_bytes();
      TANDEM_RETURN_IF_ERROR(copier->CopyWithin(nowhere, slot, transport_->block_bytes()).status());
      MutexLock lock(&mu_);
      if (!closed_) probe_.Count(header);
      return absl::OkStatus();
    }
    std::optional<FrameSink::Landing> landing = Begin(header);
    if (!landing.has_value()) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const uint32_t crc32c,
                            copier->CopyWithin(landing->data(), slot, transport_->block_bytes()));
    landing->Complete(crc32c);
    return absl::OkStatus();
  }
  std::optional<FrameSink::Landing> Begin(const FrameHeader& header) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (closed_) return std::nullopt;
    return transport_->sink_.Begin(header);
  }
  std::byte* Slot(size_t number) const {
    return slots_ + number % NcclPair::kWindow * transport_->block_bytes();
  }

  std::vector<uint64_t> OnClosed(const absl::Status& why) override REQUIRES(mu_) {
    probe_.Close();
    return {};
  }
  void Release() override {
    if (slots_ != nullptr) transport_->GiveBackSlots(slots_);
  }

  const NcclUniqueId id_;
  LinkProbe probe_ GUARDED_BY(mu_);
  // Groups whose receives are not posted yet.
  std::deque<std::vector<FrameHeader>> announced_ GUARDED_BY(mu_);
  // The link's thread's.
  std::byte* slots_ = nullptr;         // [kWindow + 1] blocks of the device.
  std::deque<FrameHeader> under_way_;  // The first one's block comes to Slot(oldest_).
  size_t oldest_ = 0;
};

class NcclTransport::Inbound final : public KvInbound {
 public:
  Inbound(NcclTransport* transport, std::string peer, std::string target,
          std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport),
        peer_(std::move(peer)),
        target_(std::move(target)),
        local_({.token = RandomBytes(NcclAddress::kTokenBytes),
                .block_bytes = transport->options_.pool.kv.block_bytes}),
        address_(EncodeNcclAddress(local_)),
        on_lost_(std::move(on_lost)) {}
  ~Inbound() override {
    on_lost_->Clear();
    if (link_ == nullptr) return;
    link_->Close(absl::CancelledError("the session ended"));
    stream_->Cancel();
  }
  const std::string& address() const override { return address_; }
  void Attach(const std::string& sender_address) override {
    const absl::StatusOr<NcclAddress> remote = DecodeNcclAddress(sender_address, /*senders=*/true);
    if (!remote.ok()) return on_lost_->Call(remote.status());
    if (remote->token != local_.token || remote->block_bytes != local_.block_bytes) {
      return on_lost_->Call(
          absl::InvalidArgumentError("the peer answered for another KV link, or other blocks"));
    }
    link_ = std::make_shared<ReceiveLink>(transport_, peer_, *remote->id, on_lost_);
    transport_->Start(link_);
    stream_ = transport_->carrier_->Dial(target_, local_.token, link_);
  }

 private:
  NcclTransport* const transport_;
  const std::string peer_;
  const std::string target_;
  const NcclAddress local_;
  const std::string address_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
  std::shared_ptr<ReceiveLink> link_;  // From Attach, both.
  std::shared_ptr<DialledStream> stream_;
};

// ---- The transport ----

absl::StatusOr<std::unique_ptr<NcclTransport>> NcclTransport::Create(
    const NcclOptions& options, std::unique_ptr<FrameCarrier> carrier, KvReceiver* receiver,
    Listener* listener) {
  TANDEM_RETURN_IF_ERROR(CheckPool(options.pool));
  if (options.pool.memory != MemoryKind::kDevice) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the nccl transport moves a GPU's memory, and the KV pool of %d bytes is "
                        "the host's",
                        options.pool.kv.pool_bytes()));
  }
  std::unique_ptr<NcclTransport> transport(
      new NcclTransport(options, std::move(carrier), receiver, listener));
  for (size_t i = 0; i < kSpareIds; ++i) TANDEM_RETURN_IF_ERROR(transport->MakeId());
  TANDEM_ASSIGN_OR_RETURN(transport->probe_, options.api->Malloc(transport->block_bytes()));
  const std::vector<std::byte> zeros(transport->block_bytes());
  TANDEM_RETURN_IF_ERROR(
      options.pool.copier->Upload(transport->probe_, zeros.data(), zeros.size()).status());
  transport->keeper_ = std::thread([self = transport.get()] { self->Keep(); });
  return transport;
}

NcclTransport::NcclTransport(const NcclOptions& options, std::unique_ptr<FrameCarrier> carrier,
                             KvReceiver* receiver, Listener* listener)
    : options_(options),
      api_(options.api),
      listener_(listener),
      sink_(options.pool, receiver, listener),
      carrier_(std::move(carrier)) {
  carrier_->Serve(&links_);
}

NcclTransport::~NcclTransport() {
  holders_.WaitForNone(name());
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (keeper_.joinable()) keeper_.join();
  MutexLock lock(&mu_);
  for (std::thread& thread : threads_) thread.join();
  for (std::byte* const slots : free_slots_) api_->Free(slots);
  if (probe_ != nullptr) api_->Free(probe_);
}

void NcclTransport::Start(const std::shared_ptr<Link>& link) {
  try {
    MutexLock lock(&mu_);
    threads_.emplace_back([this, running = link]() mutable {
      pthread_setname_np(pthread_self(), "kv-nccl");
      running->Run();
      {
        // Before the link lets go of the transport.
        MutexLock ending(&mu_);
        ended_.push_back(std::this_thread::get_id());
        changed_.SignalAll();
      }
      running.reset();
    });
  } catch (const std::system_error& error) {
    link->Close(absl::ResourceExhaustedError(absl::StrFormat("no thread: %s", error.what())));
  }
}

void NcclTransport::Keep() {
  pthread_setname_np(pthread_self(), "kv-nccl-keeper");
  bool stopping = false;
  while (!stopping) {
    std::list<std::thread> ended;
    bool make_id = false;
    {
      MutexLock lock(&mu_);
      ended = TakeEnded();
      stopping = stopping_;
      const bool wants_id = ids_.size() < kSpareIds;
      make_id = wants_id && std::chrono::steady_clock::now() >= next_id_;
      if (ended.empty() && !stopping && !make_id) {
        if (wants_id) {
          changed_.WaitUntil(&mu_, next_id_);
        } else {
          changed_.Wait(&mu_);
        }
      }
    }
    for (std::thread& thread : ended) thread.join();
    if (!make_id) continue;
    if (const absl::Status made = MakeId(); !made.ok()) {
      LogWarning("no unique id for KV links", {{"why", made.ToString()}});
      MutexLock lock(&mu_);
      next_id_ = std::chrono::steady_clock::now() + kIdPause;
    }
  }
}

std::list<std::thread> NcclTransport::TakeEnded() {
  std::list<std::thread> ended;
  for (const std::thread::id id : std::exchange(ended_, {})) {
    const auto thread = std::find_if(threads_.begin(), threads_.end(),
                                     [id](const std::thread& each) { return each.get_id() == id; });
    ended.splice(ended.end(), threads_, thread);
  }
  return ended;
}

absl::Status NcclTransport::MakeId() {
  NcclUniqueId id = {};
  if (const NcclResult made = api_->GetUniqueId(&id); made != NcclResult::kSuccess) {
    return absl::FailedPreconditionError(absl::StrFormat("NCCL makes no unique id: result %d: %s",
                                                         static_cast<int>(made),
                                                         api_->GetLastError(nullptr)));
  }
  MutexLock lock(&mu_);
  for (const NcclUniqueId& other : ids_) {
    // One that a file of NCCL's settings names would be everybody's.
    if (std::memcmp(&other, &id, sizeof(id)) == 0) {
      return absl::FailedPreconditionError("NCCL made one id twice: is NCCL_COMM_ID set?");
    }
  }
  ids_.push_back(id);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> NcclTransport::TakeSlots() {
  {
    MutexLock lock(&mu_);
    if (!free_slots_.empty()) {
      std::byte* const slots = free_slots_.back();
      free_slots_.pop_back();
      return slots;
    }
  }
  return api_->Malloc(static_cast<size_t>(kSlots) * block_bytes());
}

void NcclTransport::GiveBackSlots(std::byte* slots) {
  MutexLock lock(&mu_);
  free_slots_.push_back(slots);
}

absl::StatusOr<std::unique_ptr<KvInbound>> NcclTransport::OpenInbound(
    const std::string& peer, const std::string& peer_target, LostCallback on_lost) {
  return std::make_unique<Inbound>(this, peer, peer_target,
                                   std::make_shared<LostCallbackOnce>(std::move(on_lost)));
}

absl::StatusOr<std::unique_ptr<KvOutbound>> NcclTransport::OpenOutbound(
    const std::string& receiver_address, LostCallback on_lost) {
  TANDEM_ASSIGN_OR_RETURN(NcclAddress address,
                          DecodeNcclAddress(receiver_address, /*senders=*/false));
  if (address.block_bytes != options_.pool.kv.block_bytes) {
    return absl::FailedPreconditionError(absl::StrFormat("the peer's blocks have %d bytes, ours %d",
                                                         address.block_bytes,
                                                         options_.pool.kv.block_bytes));
  }
  {
    MutexLock lock(&mu_);
    if (ids_.empty()) return absl::UnavailableError("NCCL is behind in making unique ids");
    address.id = ids_.back();
    ids_.pop_back();
    changed_.SignalAll();
  }
  auto once = std::make_shared<LostCallbackOnce>(std::move(on_lost));
  auto link = std::make_shared<SendLink>(this, *address.id, once);
  return links_.Open(address.token, EncodeNcclAddress(address), std::move(link), std::move(once));
}

}  // namespace tandem
