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
#include "runtime/base/status_macros.h"
#include "runtime/transport/frame_queue.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/link_probe.h"
#include "runtime/transport/lost_callback.h"
#include "runtime/transport/nccl/nccl_address.h"
#include "runtime/transport/nccl/nccl_group.h"
#include "runtime/transport/nccl/nccl_pair.h"

namespace tandem {

namespace {

constexpr int kSenderRank = 0;
constexpr int kReceiverRank = 1;
// While NCCL has something of a link's under way, which no event of the host's announces.
constexpr auto kNap = std::chrono::microseconds(50);
// Waits last NcclOptions::stall divided by these: whoever holds a GPU in vain has given it up, or
// is lost, long before those who wait for it are.
constexpr int kTurn = 1;        // 20 s: a turn, and Ready behind the receiver's other links.
constexpr int kOperation = 4;   // 5 s: from the group's headers to the last of its blocks.
constexpr int kAnswer = 10;     // 2 s: a peer's message, while this GPU is held.
constexpr int kSecondGpu = 20;  // 1 s: this GPU, while the receiver's is held.
constexpr int kFirstGpu = 100;  // 0.2 s: the receiver's GPU, while this one is held.

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
      NcclPair pair(transport_->api_, transport_->options_.stall / kOperation,
                    [this] { return Nap(); });
      Close(closed() ? absl::CancelledError("closed") : Work(&pair));
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
    transport_->gpu_turns_.Wake();
    transport_->slot_turns_.Wake();
    for (const uint64_t send_id : dropped) transport_->listener_->OnFrameSent(send_id, false);
    on_lost_->Call(why);
  }

 protected:
  // Returns once the link is closed, or why it has to be.
  virtual absl::Status Work(NcclPair* pair) = 0;
  // Once, with the link just closed. Of which sends it was that wait and will not travel.
  virtual std::vector<uint64_t> OnClosed(const absl::Status& why) REQUIRES(mu_) = 0;
  // NCCL touches nothing of the link's any more.
  virtual void Release() { gpu_.reset(); }

  Turns::Time Until(int part_of_stall) const {
    return Turns::Time::clock::now() + transport_->options_.stall / part_of_stall;
  }
  // Waits for one until then, kAnswer away. Cancelled: the link is closed; Unavailable: too late.
  absl::Status AwaitChange(const char* doing, Turns::Time until) REQUIRES(mu_) {
    if (!closed_ && !changed_.WaitUntil(&mu_, until)) return TooLong(doing, kAnswer);
    return closed_ ? absl::CancelledError(doing) : absl::OkStatus();
  }
  // The next turn of `turns`, put into `turn`.
  absl::Status Take(Turns* turns, std::optional<Turns::Turn>* turn, const char* doing)
      EXCLUDES(mu_) {
    *turn = turns->Take(Until(kTurn), [this] { return !closed(); });
    if (turn->has_value()) return absl::OkStatus();
    return closed() ? absl::CancelledError(doing) : TooLong(doing, kTurn);
  }
  // This GPU is the link's, for one operation.
  absl::Status TakeGpu() EXCLUDES(mu_) {
    return Take(&transport_->gpu_turns_, &gpu_, "waiting for this GPU's other links");
  }
  absl::Status TooLong(const char* doing, int part_of_stall) const {
    return absl::UnavailableError(absl::StrFormat(
        "%s: not within %d ms", doing, (transport_->options_.stall / part_of_stall).count()));
  }
  bool closed() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return closed_;
  }

  const Holders::Hold hold_;  // Goes last.
  NcclTransport* const transport_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
  std::optional<Turns::Turn> gpu_;  // The link's thread's.
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
  // `holds_first`: this GPU is held before the receiver's.
  SendLink(NcclTransport* transport, const NcclUniqueId& id, bool holds_first,
           std::shared_ptr<LostCallbackOnce> on_lost)
      : Link(transport, std::move(on_lost)), id_(id), holds_first_(holds_first) {
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
  void OnReady() override EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (std::exchange(asked_, false)) {
        ready_ = true;
        return changed_.SignalAll();
      }
    }
    SendingLink::OnReady();
  }
  void OnStreamGone() override EXCLUDES(mu_) {
    Close(absl::UnavailableError("the stream of KV headers ended"));
    MutexLock lock(&mu_);
    stream_ = nullptr;
  }

 private:
  absl::Status Work(NcclPair* pair) override EXCLUDES(mu_) {
    TANDEM_RETURN_IF_ERROR(pair->Open(id_, kSenderRank, transport_->options_.stall));
    // The first block goes alone, which connects the two: those behind it measure the link.
    size_t most = 1;
    bool first = holds_first_;
    while (true) {
      TANDEM_RETURN_IF_ERROR(AwaitFrames());
      TANDEM_RETURN_IF_ERROR(HoldGpus(first));
      // Whoever held the receiver's GPU in vain waits for this one without holding anything.
      first = holds_first_ || !gpu_.has_value();
      TANDEM_ASSIGN_OR_RETURN(const std::vector<const std::byte*> blocks,
                              BeginGroup(gpu_.has_value() ? most : 0));
      if (!blocks.empty()) {
        TANDEM_RETURN_IF_ERROR(pair->Send(blocks, transport_->block_bytes()));
        most = NcclPair::kGroup;
      }
      gpu_.reset();
      while (!under_way_.empty()) Complete(true);
    }
  }
  absl::Status AwaitFrames() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    while (!closed_ && waiting_.empty()) changed_.Wait(&mu_);
    return closed_ ? absl::CancelledError("closed") : absl::OkStatus();
  }
  // The receiver's GPU is free for one operation, and so is this one, if there is a gpu_: else the
  // receiver has to be told that nothing comes. `first`: this one before the receiver's.
  absl::Status HoldGpus(bool first) EXCLUDES(mu_) {
    if (first) TANDEM_RETURN_IF_ERROR(TakeGpu());
    TANDEM_RETURN_IF_ERROR(Ask());
    if (first) {
      TANDEM_ASSIGN_OR_RETURN(const bool ready, AwaitReady(Until(kFirstGpu)));
      if (ready) return absl::OkStatus();
      gpu_.reset();
    }
    TANDEM_ASSIGN_OR_RETURN(const bool ready, AwaitReady(Until(kTurn)));
    if (!ready) return TooLong("waiting for the receiver's other links", kTurn);
    gpu_ = transport_->gpu_turns_.Take(Until(kSecondGpu), [this] { return !closed(); });
    return absl::OkStatus();
  }
  absl::Status Ask() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    TANDEM_RETURN_IF_ERROR(Write({}));
    asked_ = true;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> AwaitReady(Turns::Time until) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    while (!closed_ && !ready_ && changed_.WaitUntil(&mu_, until)) {
    }
    if (closed_) return absl::CancelledError("closed");
    return std::exchange(ready_, false);
  }
  // Puts the next ones that wait under way, `most` of them, and their headers on the stream. Where
  // their blocks lie.
  absl::StatusOr<std::vector<const std::byte*>> BeginGroup(size_t most) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    std::vector<const std::byte*> blocks;
    std::vector<FrameHeader> headers;
    while (blocks.size() < most && !waiting_.empty()) {
      const FrameQueue::Frame next = waiting_.Pop();
      under_way_.push_back(next);
      headers.push_back(next.header);
      blocks.push_back(next.probe() ? transport_->zeros()
                                    : transport_->options_.pool.block(next.block));
    }
    TANDEM_RETURN_IF_ERROR(Write(headers));
    return blocks;
  }
  // Once nothing else is being written.
  absl::Status Write(std::span<const FrameHeader> group) REQUIRES(mu_) {
    const Turns::Time until = Until(kAnswer);
    // Closed: AwaitChange says so.
    while (writing_ || closed_) {
      TANDEM_RETURN_IF_ERROR(AwaitChange("waiting for the stream of headers", until));
    }
    writing_ = true;
    WriteGroup(group, stream_);
    return absl::OkStatus();
  }
  std::vector<uint64_t> OnClosed(const absl::Status& why) override REQUIRES(mu_) {
    if (stream_ != nullptr) stream_->End(why);
    return waiting_.Clear();
  }
  void Release() override {
    Link::Release();
    while (!under_way_.empty()) Complete(false);
  }
  // The oldest frame's block will not be read any more.
  void Complete(bool ok) {
    const FrameQueue::Frame frame = under_way_.front();
    under_way_.pop_front();
    if (!frame.probe()) transport_->listener_->OnFrameSent(frame.send_id, ok);
  }

  const NcclUniqueId id_;
  const bool holds_first_;
  FrameQueue waiting_ GUARDED_BY(mu_);
  FrameStream* stream_ GUARDED_BY(mu_) = nullptr;
  bool writing_ GUARDED_BY(mu_) = false;
  bool asked_ GUARDED_BY(mu_) = false;  // Ready is owed.
  bool ready_ GUARDED_BY(mu_) = false;  // It has come: the receiver's GPU is held for this link.
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

  // Once: where the headers come from.
  void Join(std::shared_ptr<DialledStream> stream) {
    stream_ = std::move(stream);
    transport_->Start(shared_from_this());
  }

  absl::Status OnFrame(const FrameHeader& header,
                       std::span<const std::string_view> payload) override EXCLUDES(mu_) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<FrameHeader> group, ReadGroup(header, payload));
    for (const FrameHeader& each : group) TANDEM_RETURN_IF_ERROR(transport_->sink_.Check(each));
    MutexLock lock(&mu_);
    if (closed_) return absl::CancelledError("closed");
    if (ready_) {
      ready_ = false;
      group_ = std::move(group);
    } else if (group.empty()) {
      asked_ = true;
    } else {
      return absl::InvalidArgumentError(absl::StrFormat(
          "frame: %d headers, and the receiver has not said that it is ready", group.size()));
    }
    changed_.SignalAll();
    return absl::OkStatus();
  }
  void OnEnded(const absl::Status& why) override { Close(why); }

  // On the transport's thread for it: a group has arrived in `slots`.
  void Land(std::span<const FrameHeader> group, const Turns::Turn& slots) {
    for (size_t i = 0; i < group.size(); ++i) {
      const absl::Status landed = LandBlock(group[i], transport_->Slot(slots, i));
      if (!landed.ok()) return Close(landed);
    }
  }

 private:
  absl::Status Work(NcclPair* pair) override EXCLUDES(mu_) {
    TANDEM_RETURN_IF_ERROR(pair->Open(id_, kReceiverRank, transport_->options_.stall));
    while (true) {
      TANDEM_RETURN_IF_ERROR(AwaitAsked());
      TANDEM_RETURN_IF_ERROR(
          Take(&transport_->slot_turns_, &slots_, "waiting for what has arrived"));
      TANDEM_RETURN_IF_ERROR(TakeGpu());
      TANDEM_ASSIGN_OR_RETURN(std::vector<FrameHeader> group, AwaitGroup());
      if (!group.empty()) {
        std::vector<std::byte*> slots;
        for (size_t i = 0; i < group.size(); ++i) slots.push_back(transport_->Slot(*slots_, i));
        TANDEM_RETURN_IF_ERROR(pair->Receive(slots, transport_->block_bytes()));
        transport_->LandLater({std::static_pointer_cast<ReceiveLink>(shared_from_this()),
                               std::move(group), *std::move(slots_)});
      }
      slots_.reset();
      gpu_.reset();
    }
  }
  absl::Status AwaitAsked() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    while (!closed_ && !asked_) changed_.Wait(&mu_);
    asked_ = false;
    return closed_ ? absl::CancelledError("closed") : absl::OkStatus();
  }
  // Says that this GPU is held, and waits for what comes of it.
  absl::StatusOr<std::vector<FrameHeader>> AwaitGroup() EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      ready_ = true;
    }
    stream_->Ready();
    const Turns::Time until = Until(kAnswer);
    MutexLock lock(&mu_);
    while (!group_.has_value()) {
      TANDEM_RETURN_IF_ERROR(AwaitChange("waiting for the sender", until));
    }
    return *std::exchange(group_, std::nullopt);
  }

  // The block of `header` has arrived in `slot`.
  absl::Status LandBlock(const FrameHeader& header, const std::byte* slot) EXCLUDES(mu_) {
    DeviceCopier* const copier = transport_->options_.pool.copier;
    const size_t size_bytes = transport_->block_bytes();
    if (IsProbe(header)) {
      // As long as a block takes.
      TANDEM_RETURN_IF_ERROR(copier->CopyWithin(transport_->nowhere(), slot, size_bytes).status());
      MutexLock lock(&mu_);
      if (!closed_) probe_.Count(header);
      return absl::OkStatus();
    }
    std::optional<FrameSink::Landing> landing = Begin(header);
    if (!landing.has_value()) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const uint32_t crc32c,
                            copier->CopyWithin(landing->data(), slot, size_bytes));
    landing->Complete(crc32c);
    return absl::OkStatus();
  }
  std::optional<FrameSink::Landing> Begin(const FrameHeader& header) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (closed_) return std::nullopt;
    return transport_->sink_.Begin(header);
  }

  std::vector<uint64_t> OnClosed(const absl::Status& why) override REQUIRES(mu_) {
    probe_.Close();
    return {};
  }
  void Release() override {
    slots_.reset();
    Link::Release();
  }

  const NcclUniqueId id_;
  // The link's thread's.
  std::shared_ptr<DialledStream> stream_;
  std::optional<Turns::Turn> slots_;

  LinkProbe probe_ GUARDED_BY(mu_);
  bool asked_ GUARDED_BY(mu_) = false;  // A Ready is owed.
  bool ready_ GUARDED_BY(mu_) = false;  // It is said: a group is owed.
  std::optional<std::vector<FrameHeader>> group_ GUARDED_BY(mu_);
};

class NcclTransport::Inbound final : public KvInbound {
 public:
  Inbound(NcclTransport* transport, std::string peer, std::string target,
          std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport),
        peer_(std::move(peer)),
        target_(std::move(target)),
        local_({.token = RandomBytes(NcclAddress::kTokenBytes),
                .block_bytes = transport->options_.pool.kv.block_bytes,
                .precedence = transport->precedence_}),
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
    stream_ = transport_->carrier_->Dial(target_, local_.token, link_);
    link_->Join(stream_);
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
  TANDEM_ASSIGN_OR_RETURN(transport->ids_, NcclIds::Create(options.api));
  TANDEM_ASSIGN_OR_RETURN(
      transport->memory_,
      options.api->Malloc(static_cast<size_t>(DeviceBytes(options.pool.kv.block_bytes))));
  const std::vector<std::byte> zeros(transport->block_bytes());
  TANDEM_RETURN_IF_ERROR(
      options.pool.copier->Upload(transport->zeros(), zeros.data(), zeros.size()).status());
  transport->lander_ = std::thread([self = transport.get()] { self->LandAll(); });
  return transport;
}

NcclTransport::NcclTransport(const NcclOptions& options, std::unique_ptr<FrameCarrier> carrier,
                             KvReceiver* receiver, Listener* listener)
    : options_(options),
      api_(options.api),
      listener_(listener),
      sink_(options.pool, receiver, listener),
      carrier_(std::move(carrier)) {
  const std::string drawn = RandomBytes(sizeof(precedence_));
  std::memcpy(&precedence_, drawn.data(), sizeof(precedence_));
  carrier_->Serve(&links_);
}

NcclTransport::~NcclTransport() {
  holders_.WaitForNone(name());
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    landing_.SignalAll();
  }
  if (lander_.joinable()) lander_.join();
  MutexLock lock(&mu_);
  for (std::thread& thread : threads_) thread.join();
  if (memory_ != nullptr) api_->Free(memory_);
}

void NcclTransport::Start(const std::shared_ptr<Link>& link) {
  JoinEnded();
  try {
    MutexLock lock(&mu_);
    threads_.emplace_back([this, running = link]() mutable {
      pthread_setname_np(pthread_self(), "kv-nccl");
      running->Run();
      {
        // Before the link lets go of the transport.
        MutexLock ending(&mu_);
        ended_.push_back(std::this_thread::get_id());
      }
      running.reset();
    });
  } catch (const std::system_error& error) {
    link->Close(absl::ResourceExhaustedError(absl::StrFormat("no thread: %s", error.what())));
  }
}

void NcclTransport::JoinEnded() {
  std::list<std::thread> ended;
  {
    MutexLock lock(&mu_);
    for (const std::thread::id id : std::exchange(ended_, {})) {
      ended.splice(ended.end(), threads_,
                   std::find_if(threads_.begin(), threads_.end(),
                                [id](const std::thread& each) { return each.get_id() == id; }));
    }
  }
  for (std::thread& thread : ended) thread.join();
}

void NcclTransport::LandLater(Arrived arrived) {
  MutexLock lock(&mu_);
  arrived_.push_back(std::move(arrived));
  landing_.SignalAll();
}

void NcclTransport::LandAll() {
  pthread_setname_np(pthread_self(), "kv-nccl-land");
  while (true) {
    std::list<Arrived> next;
    {
      MutexLock lock(&mu_);
      while (arrived_.empty() && !stopping_) landing_.Wait(&mu_);
      if (arrived_.empty()) return;
      next.splice(next.begin(), arrived_, arrived_.begin());
    }
    next.front().link->Land(next.front().group, next.front().slots);
  }
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
  if (address.precedence == precedence_) {
    return absl::FailedPreconditionError("the peer says that it is this transport");
  }
  TANDEM_ASSIGN_OR_RETURN(address.id, ids_->Take());
  const bool holds_first = precedence_ < std::exchange(address.precedence, precedence_);
  auto once = std::make_shared<LostCallbackOnce>(std::move(on_lost));
  auto link = std::make_shared<SendLink>(this, *address.id, holds_first, once);
  return links_.Open(address.token, EncodeNcclAddress(address), std::move(link), std::move(once));
}

}  // namespace tandem
