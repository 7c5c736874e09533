#include "runtime/transport/stream/stream_transport.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/entropy.h"
#include "runtime/base/huge_pages.h"
#include "runtime/base/status_macros.h"
#include "runtime/transport/frame_queue.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/link_probe.h"
#include "runtime/transport/lost_callback.h"

namespace tandem {

namespace {

constexpr size_t kTokenBytes = 16;

}  // namespace

// ---- Sending ----

class StreamTransport::SendLink final : public SendingLink,
                                        public std::enable_shared_from_this<SendLink> {
 public:
  SendLink(StreamTransport* transport, std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport), on_lost_(std::move(on_lost)) {
    waiting_.PushProbes(transport->pool_.kv.block_bytes);
  }

  void Send(const FrameHeader& header, int32_t block, uint64_t send_id) override EXCLUDES(mu_);
  void Withdraw(uint64_t send_id) override EXCLUDES(mu_);
  bool Join(FrameStream* stream) override EXCLUDES(mu_);
  void OnWritten(bool ok) override EXCLUDES(mu_);
  void OnStreamGone() override EXCLUDES(mu_);
  void Close(const absl::Status& why) override EXCLUDES(mu_);
  // Without the lock: payloads may be destroyed inside a write.
  bool closed() const { return closed_.load(); }

 private:
  // If one waits and may go. Closes the link if its block cannot be read.
  void WriteNext() EXCLUDES(mu_);
  absl::Status TryWriteNext() REQUIRES(mu_);

  StreamTransport* const transport_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
  mutable Mutex mu_;
  FrameQueue waiting_ GUARDED_BY(mu_);
  FrameStream* stream_ GUARDED_BY(mu_) = nullptr;
  bool writing_ GUARDED_BY(mu_) = false;
  std::atomic<bool> closed_{false};  // Written under the lock.
};

// Its destruction reports the frame.
class StreamTransport::Payload final : public FramePayload {
 public:
  // `copy`: where the bytes lie, if not in the pool.
  Payload(std::span<const std::byte> bytes, StagingBuffers::Buffer copy, StreamTransport* transport,
          std::shared_ptr<SendLink> link, uint64_t send_id, bool probe)
      : FramePayload(bytes),
        hold_(&transport->holders_),
        transport_(transport),
        copy_(std::move(copy)),
        link_(std::move(link)),
        send_id_(send_id),
        probe_(probe) {}
  ~Payload() override {
    if (!probe_) transport_->listener_->OnFrameSent(send_id_, !link_->closed());
  }

 private:
  const Holders::Hold hold_;  // Goes last.
  StreamTransport* const transport_;
  const StagingBuffers::Buffer copy_;
  const std::shared_ptr<SendLink> link_;
  const uint64_t send_id_;
  const bool probe_;
};

void StreamTransport::SendLink::Send(const FrameHeader& header, int32_t block, uint64_t send_id) {
  bool closed = false;
  {
    MutexLock lock(&mu_);
    closed = closed_;
    if (!closed) waiting_.Push(header, block, send_id);
  }
  if (closed) {
    transport_->listener_->OnFrameSent(send_id, false);
  } else {
    WriteNext();
  }
}

void StreamTransport::SendLink::Withdraw(uint64_t send_id) {
  {
    MutexLock lock(&mu_);
    if (!waiting_.Withdraw(send_id)) return;
  }
  transport_->listener_->OnFrameSent(send_id, false);
}

bool StreamTransport::SendLink::Join(FrameStream* stream) {
  {
    MutexLock lock(&mu_);
    if (closed_) return false;
    stream_ = stream;
  }
  WriteNext();
  return true;
}

void StreamTransport::SendLink::WriteNext() {
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = TryWriteNext();
  }
  if (!status.ok()) Close(status);
}

absl::Status StreamTransport::SendLink::TryWriteNext() {
  if (stream_ == nullptr || writing_ || closed_ || waiting_.empty()) return absl::OkStatus();
  const KvPool& pool = transport_->pool_;
  const auto size_bytes = static_cast<size_t>(pool.kv.block_bytes);
  const bool probe = waiting_.front().probe();
  const std::byte* bytes = probe ? transport_->probe_.data() : pool.block(waiting_.front().block);
  StagingBuffers::Buffer copy;
  if (!probe && pool.memory == MemoryKind::kDevice) {
    copy = transport_->staging_->Take();
    TANDEM_RETURN_IF_ERROR(pool.copier->Download(copy.data(), bytes, size_bytes));
    bytes = copy.data();
  }
  const FrameQueue::Frame next = waiting_.Pop();
  writing_ = true;
  stream_->Write(next.header,
                 std::make_unique<Payload>(std::span(bytes, size_bytes), std::move(copy),
                                           transport_, shared_from_this(), next.send_id, probe));
  return absl::OkStatus();
}

void StreamTransport::SendLink::OnWritten(bool ok) {
  if (!ok) {
    Close(absl::UnavailableError("the KV stream broke"));
    return;
  }
  {
    MutexLock lock(&mu_);
    writing_ = false;
  }
  WriteNext();
}

void StreamTransport::SendLink::OnStreamGone() {
  Close(absl::UnavailableError("the KV stream ended"));
  MutexLock lock(&mu_);
  stream_ = nullptr;
}

void StreamTransport::SendLink::Close(const absl::Status& why) {
  std::vector<uint64_t> dropped;
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    dropped = waiting_.Clear();
    if (stream_ != nullptr) stream_->End(why);
  }
  for (const uint64_t send_id : dropped) transport_->listener_->OnFrameSent(send_id, false);
  on_lost_->Call(why);
}

// ---- Receiving ----

class StreamTransport::ReceiveLink final : public FrameTarget {
 public:
  ReceiveLink(StreamTransport* transport, const std::string& peer,
              std::shared_ptr<LostCallbackOnce> on_lost)
      : hold_(&transport->holders_),
        transport_(transport),
        on_lost_(std::move(on_lost)),
        scratch_(static_cast<size_t>(transport->pool_.kv.block_bytes)),
        probe_(transport->listener_, peer, std::string(transport->name())) {}

  // No frame gets a place after this.
  void Close() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    closed_ = true;
    probe_.Close();
  }

  absl::Status OnFrame(const FrameHeader& header,
                       std::span<const std::string_view> payload) override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (closed_) return absl::CancelledError("closed");
    TANDEM_RETURN_IF_ERROR(transport_->sink_.Check(header));
    TANDEM_RETURN_IF_ERROR(CheckLength(header, payload));
    if (IsProbe(header)) {
      CopyAndSum(payload, scratch_.data());
      probe_.Count(header);
    } else if (std::optional<FrameSink::Landing> landing = transport_->sink_.Begin(header)) {
      TANDEM_ASSIGN_OR_RETURN(const uint32_t crc32c, Land(payload, landing->data()));
      landing->Complete(crc32c);
    }
    return absl::OkStatus();
  }
  void OnEnded(const absl::Status& why) override { on_lost_->Call(why); }

 private:
  // Into a block. The checksum of what lies there.
  absl::StatusOr<uint32_t> Land(std::span<const std::string_view> payload, std::byte* block)
      REQUIRES(mu_) {
    const KvPool& pool = transport_->pool_;
    if (pool.memory == MemoryKind::kHost) return CopyAndSum(payload, block);
    const StagingBuffers::Buffer copy = transport_->staging_->Take();
    CopyAndSum(payload, copy.data());
    return pool.copier->Upload(block, copy.data(), scratch_.size());
  }

  static absl::Status CheckLength(const FrameHeader& header,
                                  std::span<const std::string_view> payload) {
    size_t size_bytes = 0;
    for (const std::string_view part : payload) size_bytes += part.size();
    if (size_bytes == header.length_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "frame: %d bytes of payload, its header says %d", size_bytes, header.length_bytes));
  }

  static uint32_t CopyAndSum(std::span<const std::string_view> payload, std::byte* out) {
    uint32_t crc = 0;
    for (const std::string_view part : payload) {
      crc = Crc32cCopy(out, part.data(), part.size(), crc);
      out += part.size();
    }
    return crc;
  }

  const Holders::Hold hold_;  // Goes last.
  StreamTransport* const transport_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
  Mutex mu_;
  std::vector<std::byte> scratch_ GUARDED_BY(mu_);  // Where probes land.
  LinkProbe probe_ GUARDED_BY(mu_);
  bool closed_ GUARDED_BY(mu_) = false;
};

class StreamTransport::Inbound final : public KvInbound {
 public:
  Inbound(StreamTransport* transport, std::string peer, std::string target,
          std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport),
        peer_(std::move(peer)),
        target_(std::move(target)),
        token_(RandomBytes(kTokenBytes)),
        on_lost_(std::move(on_lost)) {}
  ~Inbound() override {
    on_lost_->Clear();
    if (link_ == nullptr) return;
    link_->Close();
    stream_->Cancel();
  }
  const std::string& address() const override { return token_; }
  void Attach(const std::string& sender_address) override {
    if (sender_address != token_) {
      on_lost_->Call(absl::InvalidArgumentError("the peer answered for another KV link"));
      return;
    }
    link_ = std::make_shared<ReceiveLink>(transport_, peer_, on_lost_);
    stream_ = transport_->carrier_->Dial(target_, token_, link_);
  }

 private:
  StreamTransport* const transport_;
  const std::string peer_;
  const std::string target_;
  const std::string token_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
  std::shared_ptr<ReceiveLink> link_;  // From Attach, both.
  std::shared_ptr<DialledStream> stream_;
};

// ---- The transport ----

absl::StatusOr<std::unique_ptr<StreamTransport>> StreamTransport::Create(
    const KvPool& pool, std::unique_ptr<FrameCarrier> carrier, KvReceiver* receiver,
    Listener* listener) {
  TANDEM_RETURN_IF_ERROR(CheckPool(pool));
  const bool owned = pool.base == nullptr;
  KvPool registered = pool;
  if (owned) {
    const auto bytes = static_cast<size_t>(pool.kv.pool_bytes());
    TANDEM_ASSIGN_OR_RETURN(registered.base, MapHugePages(bytes, "a KV pool"));
    std::memset(registered.base, 0, bytes);  // Pages are made here, in no transfer.
  }
  std::unique_ptr<StagingBuffers> staging;
  if (pool.memory == MemoryKind::kDevice) {
    TANDEM_ASSIGN_OR_RETURN(
        staging, StagingBuffers::Create(pool.copier, static_cast<size_t>(pool.kv.block_bytes)));
  }
  return std::unique_ptr<StreamTransport>(new StreamTransport(
      registered, owned, std::move(staging), std::move(carrier), receiver, listener));
}

StreamTransport::StreamTransport(const KvPool& pool, bool owned,
                                 std::unique_ptr<StagingBuffers> staging,
                                 std::unique_ptr<FrameCarrier> carrier, KvReceiver* receiver,
                                 Listener* listener)
    : pool_(pool),
      owns_pool_(owned),
      listener_(listener),
      sink_(pool, receiver, listener),
      probe_(static_cast<size_t>(pool.kv.block_bytes)),
      staging_(std::move(staging)),
      carrier_(std::move(carrier)) {
  carrier_->Serve(&links_);
}

StreamTransport::~StreamTransport() {
  holders_.WaitForNone(name());
  if (owns_pool_) munmap(pool_.base, static_cast<size_t>(pool_.kv.pool_bytes()));
}

absl::StatusOr<std::unique_ptr<KvInbound>> StreamTransport::OpenInbound(
    const std::string& peer, const std::string& peer_target, LostCallback on_lost) {
  return std::make_unique<Inbound>(this, peer, peer_target,
                                   std::make_shared<LostCallbackOnce>(std::move(on_lost)));
}

absl::StatusOr<std::unique_ptr<KvOutbound>> StreamTransport::OpenOutbound(
    const std::string& receiver_address, LostCallback on_lost) {
  if (receiver_address.size() != kTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("KV link token: %d bytes, want %d", receiver_address.size(), kTokenBytes));
  }
  auto once = std::make_shared<LostCallbackOnce>(std::move(on_lost));
  auto link = std::make_shared<SendLink>(this, once);
  return links_.Open(receiver_address, receiver_address, std::move(link), std::move(once));
}

}  // namespace tandem
