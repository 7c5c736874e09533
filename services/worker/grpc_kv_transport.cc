#include "services/worker/grpc_kv_transport.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/clock.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/entropy.h"
#include "runtime/base/log.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/lost_callback.h"
#include "services/server/channel.h"
#include "services/server/status_proto.h"
#include "services/worker/kv_frame_codec.h"

namespace tandem {

namespace {

constexpr size_t kTokenBytes = 16;
constexpr auto kReleaseGrace = std::chrono::seconds(2);

absl::Status PeerEnded() { return absl::UnavailableError("the peer ended the stream"); }

}  // namespace

// ---- Sending ----

// Travels with a slice; its destruction reports the frame.
struct GrpcKvTransport::Completion {
  GrpcKvTransport* transport = nullptr;
  std::shared_ptr<SendLink> link;
  uint64_t send_id = 0;
  bool probe = false;

  static void Done(void* self);
};

class GrpcKvTransport::SendLink : public std::enable_shared_from_this<SendLink> {
 public:
  SendLink(GrpcKvTransport* transport, std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport), on_lost_(std::move(on_lost)) {
    const int64_t block_bytes = transport->pool_.block_bytes;
    const int32_t count = NumProbes(block_bytes);
    for (int32_t i = 0; i < count; ++i) {
      waiting_.push_back({.header = ProbeHeader(i, count, block_bytes), .block = -1});
    }
  }

  void Send(const FrameHeader& header, int32_t block, uint64_t send_id) EXCLUDES(mu_);
  void Withdraw(uint64_t send_id) EXCLUDES(mu_);
  // False if the link is closed or has a stream already.
  bool Join(SendStream* stream) EXCLUDES(mu_);
  void OnWritten(bool ok) EXCLUDES(mu_);
  void OnStreamGone() EXCLUDES(mu_);
  void Close(const absl::Status& why) EXCLUDES(mu_);
  // Without the lock: slices may be destroyed inside a write.
  bool broken() const { return broken_.load(); }

 private:
  struct Waiting {
    FrameHeader header;
    int32_t block = 0;  // -1: a probe.
    uint64_t send_id = 0;
  };
  void WriteNext() REQUIRES(mu_);

  GrpcKvTransport* const transport_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
  mutable Mutex mu_;
  std::deque<Waiting> waiting_ GUARDED_BY(mu_);
  SendStream* stream_ GUARDED_BY(mu_) = nullptr;
  bool joined_ GUARDED_BY(mu_) = false;
  bool writing_ GUARDED_BY(mu_) = false;
  bool closed_ GUARDED_BY(mu_) = false;
  std::atomic<bool> broken_{false};  // Follows closed_.
};

class GrpcKvTransport::SendStream final : public EarlyReactor<v1::FramesRequest, grpc::ByteBuffer> {
 public:
  SendStream(GrpcKvTransport* transport, grpc::CallbackServerContext* context)
      : EarlyReactor(transport->options_.door->calls(), context), transport_(transport) {
    transport_->Retain();
  }

  void Write(grpc::ByteBuffer message) {
    message_.Swap(&message);
    StartWrite(&message_);
  }
  void End(const absl::Status& why) {
    context()->TryCancel();  // A write that flow control holds back ends too.
    Finish(ToGrpcStatus(why));
  }
  void OnWriteDone(bool ok) override {
    message_.Clear();
    Link()->OnWritten(ok);
  }
  void OnCancel() override EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      cancelled_ = true;
    }
    if (const auto link = Link(); link != nullptr) link->Close(PeerEnded());
    EarlyReactor::OnCancel();
  }
  void OnDone() override {
    if (const auto link = Link(); link != nullptr) link->OnStreamGone();
    GrpcKvTransport* const transport = transport_;
    delete this;
    transport->Release();
  }

 private:
  void OnRequest(std::shared_ptr<const v1::FramesRequest> request) override EXCLUDES(mu_) {
    const std::shared_ptr<SendLink> link = transport_->Forget(request->token());
    if (link == nullptr) {
      return Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no KV link of that token"));
    }
    bool cancelled = false;
    {
      MutexLock lock(&mu_);
      link_ = link;
      cancelled = cancelled_;
    }
    if (cancelled) link->Close(PeerEnded());
    if (!link->Join(this)) Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "closed"));
  }

  std::shared_ptr<SendLink> Link() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return link_;
  }

  GrpcKvTransport* const transport_;
  grpc::ByteBuffer message_;
  Mutex mu_;
  std::shared_ptr<SendLink> link_ GUARDED_BY(mu_);  // From OnRequest.
  bool cancelled_ GUARDED_BY(mu_) = false;
};

void GrpcKvTransport::Completion::Done(void* self) {
  std::unique_ptr<Completion> done(static_cast<Completion*>(self));
  GrpcKvTransport* const transport = done->transport;
  if (!done->probe) transport->listener_->OnFrameSent(done->send_id, !done->link->broken());
  done.reset();
  transport->Release();
}

void GrpcKvTransport::SendLink::Send(const FrameHeader& header, int32_t block, uint64_t send_id) {
  bool closed = false;
  {
    MutexLock lock(&mu_);
    closed = closed_;
    if (!closed) {
      waiting_.push_back({.header = header, .block = block, .send_id = send_id});
      WriteNext();
    }
  }
  if (closed) transport_->listener_->OnFrameSent(send_id, false);
}

void GrpcKvTransport::SendLink::Withdraw(uint64_t send_id) {
  {
    MutexLock lock(&mu_);
    const auto frame = std::find_if(waiting_.begin(), waiting_.end(), [send_id](const Waiting& w) {
      return w.block >= 0 && w.send_id == send_id;
    });
    if (frame == waiting_.end()) return;
    waiting_.erase(frame);
  }
  transport_->listener_->OnFrameSent(send_id, false);
}

bool GrpcKvTransport::SendLink::Join(SendStream* stream) {
  MutexLock lock(&mu_);
  if (closed_ || joined_) return false;
  joined_ = true;
  stream_ = stream;
  WriteNext();
  return true;
}

void GrpcKvTransport::SendLink::WriteNext() {
  if (stream_ == nullptr || writing_ || closed_ || waiting_.empty()) return;
  const Waiting next = waiting_.front();
  waiting_.pop_front();
  writing_ = true;
  const KvPool& pool = transport_->pool_;
  const auto block_bytes = static_cast<size_t>(pool.block_bytes);
  const bool probe = next.block < 0;
  const std::byte* payload = probe ? transport_->probe_.data() : pool.block(next.block);
  transport_->Retain();
  auto completion = std::make_unique<Completion>();
  completion->transport = transport_;
  completion->link = shared_from_this();
  completion->send_id = next.send_id;
  completion->probe = probe;
  const grpc::Slice slices[] = {
      grpc::Slice(EncodeFramePrefix(next.header, static_cast<uint32_t>(block_bytes))),
      // gRPC only reads it.
      grpc::Slice(const_cast<std::byte*>(payload), block_bytes, &Completion::Done,
                  completion.release())};
  stream_->Write(grpc::ByteBuffer(slices, 2));
}

void GrpcKvTransport::SendLink::OnWritten(bool ok) {
  if (!ok) {
    Close(absl::UnavailableError("the KV stream broke"));
    return;
  }
  MutexLock lock(&mu_);
  writing_ = false;
  WriteNext();
}

void GrpcKvTransport::SendLink::OnStreamGone() {
  Close(absl::UnavailableError("the KV stream ended"));
  MutexLock lock(&mu_);
  stream_ = nullptr;
}

void GrpcKvTransport::SendLink::Close(const absl::Status& why) {
  std::deque<Waiting> dropped;
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    broken_ = true;
    dropped.swap(waiting_);
    if (stream_ != nullptr) stream_->End(why);  // OnDone comes later, on another stack.
  }
  for (const Waiting& frame : dropped) {
    if (frame.block >= 0) transport_->listener_->OnFrameSent(frame.send_id, false);
  }
  on_lost_->Call(why);
}

class GrpcKvTransport::Outbound final : public KvOutbound {
 public:
  Outbound(GrpcKvTransport* transport, std::string token, std::shared_ptr<SendLink> link,
           std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport),
        token_(std::move(token)),
        link_(std::move(link)),
        on_lost_(std::move(on_lost)) {}
  ~Outbound() override {
    on_lost_->Clear();
    transport_->Forget(token_);
    link_->Close(absl::CancelledError("the session ended"));
  }
  const std::string& address() const override { return token_; }
  void Send(const FrameHeader& header, int32_t block, uint64_t send_id) override {
    link_->Send(header, block, send_id);
  }
  void Withdraw(uint64_t send_id) override { link_->Withdraw(send_id); }

 private:
  GrpcKvTransport* const transport_;
  const std::string token_;
  const std::shared_ptr<SendLink> link_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
};

GrpcKvTransport::Service::Service(GrpcKvTransport* transport)
    : FleetService(transport->options_.door) {
  AddMethod<grpc::ByteBuffer>(kFramesMethod, [transport](grpc::CallbackServerContext* context) {
    auto* const stream = new SendStream(transport, context);
    stream->AwaitRequest();
    return stream;
  });
}

// ---- Receiving ----

constexpr char kGrpcPath[] = "grpc";

class GrpcKvTransport::ReceiveStream final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ReceiveStream(GrpcKvTransport* transport, std::string peer, const std::string& target,
                const std::string& token, std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport),
        peer_(std::move(peer)),
        on_lost_(std::move(on_lost)),
        channel_(DialKv(target, transport->options_.block_bytes, transport->options_.liveness_scale,
                        transport->options_.tls)),
        stub_(channel_),
        proof_(&transport->options_.secret, channel_, target, kFramesMethod, &context_),
        scratch_(static_cast<size_t>(transport->pool_.block_bytes)) {
    v1::FramesRequest request;
    request.set_token(token);
    const grpc::Slice slice(request.SerializeAsString());
    request_ = grpc::ByteBuffer(&slice, 1);
    transport_->Retain();
  }

  // Deletes itself when the RPC is done.
  static void Run(std::shared_ptr<ReceiveStream> stream) {
    stream->self_ = stream;
    stream->stub_.PrepareBidiStreamingCall(&stream->context_, kFramesMethod, {}, stream.get());
    stream->StartWriteLast(&stream->request_, grpc::WriteOptions());
    stream->proof_.Start([raw = stream.get()] { raw->StartCall(); });
  }

  // No frame gets a place after this.
  void Cancel() EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      cancelled_ = true;
      if (std::exchange(probed_, false)) transport_->listener_->OnLinkClosed(peer_, kGrpcPath);
    }
    proof_.Cancel();
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (proof_.Proven(ok)) StartRead(&message_);
  }

  void OnReadDone(bool ok) override EXCLUDES(mu_) {
    if (!ok) return;  // OnDone has the reason.
    absl::Status landed = absl::CancelledError("closed");
    {
      MutexLock lock(&mu_);
      if (!cancelled_) landed = Land();
    }
    message_.Clear();
    if (!landed.ok()) {
      on_lost_->Call(landed);
      context_.TryCancel();
      return;
    }
    StartRead(&message_);
  }

  void OnDone(const grpc::Status& status) override {
    on_lost_->Call(proof_.WhyEnded(
        {grpc::StatusCode::UNAVAILABLE, "the KV stream ended: " + status.error_message()}));
    GrpcKvTransport* const transport = transport_;
    self_.reset();  // Perhaps the last reference: nothing of this may be touched now.
    transport->Release();
  }

 private:
  // One frame into its place. Only a peer that breaks the format is an error.
  absl::Status Land() REQUIRES(mu_) {
    std::vector<grpc::Slice> slices;
    if (!message_.Dump(&slices).ok()) return absl::InvalidArgumentError("frame: unreadable");
    std::vector<std::string_view> pieces;
    for (const grpc::Slice& slice : slices) {
      pieces.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    absl::StatusOr<FrameView> frame = DecodeFrame(pieces);
    if (!frame.ok()) return frame.status();
    const KvPool& pool = transport_->pool_;
    if (frame->header.length_bytes != pool.block_bytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "frame: %d bytes, blocks have %d", frame->header.length_bytes, pool.block_bytes));
    }
    if (IsProbe(frame->header)) {
      CopyAndSum(frame->payload, scratch_.data());
      CountProbe(frame->header);
      return absl::OkStatus();
    }
    const std::optional<KvReceiver::Place> place = transport_->receiver_->Begin(frame->header);
    if (!place.has_value()) return absl::OkStatus();
    const uint32_t crc = CopyAndSum(frame->payload, pool.block(place->block));
    transport_->listener_->OnFrameReceived(transport_->receiver_->Finish(*place, true, crc),
                                           pool.block_bytes);
    return absl::OkStatus();
  }

  static uint32_t CopyAndSum(const std::vector<std::string_view>& payload, std::byte* out) {
    uint32_t crc = 0;
    for (const std::string_view part : payload) {
      crc = Crc32cCopy(out, part.data(), part.size(), crc);
      out += part.size();
    }
    return crc;
  }

  void CountProbe(const FrameHeader& header) REQUIRES(mu_) {
    if (header.ordinal == 0) {
      first_probe_seconds_ = SecondsNow();
    } else if (header.ordinal + 1 == header.reservation.slot) {
      const double seconds = std::max(SecondsNow() - first_probe_seconds_, 1e-9);
      if (std::exchange(probed_, true)) return;
      transport_->listener_->OnLinkProbed(
          {.peer = peer_,
           .path = kGrpcPath,
           .bytes_per_second = static_cast<double>(header.ordinal) *
                               static_cast<double>(header.length_bytes) / seconds});
    }
  }

  GrpcKvTransport* const transport_;
  const std::string peer_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  FleetCall proof_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer message_;
  std::vector<std::byte> scratch_;
  double first_probe_seconds_ = 0;
  Mutex mu_;
  bool cancelled_ GUARDED_BY(mu_) = false;
  bool probed_ GUARDED_BY(mu_) = false;
  std::shared_ptr<ReceiveStream> self_;  // While the RPC runs.
};

class GrpcKvTransport::Inbound final : public KvInbound {
 public:
  Inbound(GrpcKvTransport* transport, std::string peer, std::string target,
          std::shared_ptr<LostCallbackOnce> on_lost)
      : transport_(transport),
        peer_(std::move(peer)),
        target_(std::move(target)),
        token_(RandomBytes(kTokenBytes)),
        on_lost_(std::move(on_lost)) {}
  ~Inbound() override {
    on_lost_->Clear();
    if (stream_ != nullptr) stream_->Cancel();
  }
  const std::string& address() const override { return token_; }
  void Attach(const std::string& sender_address) override {
    if (sender_address != token_) {
      on_lost_->Call(absl::InvalidArgumentError("the peer answered for another KV link"));
      return;
    }
    stream_ = std::make_shared<ReceiveStream>(transport_, peer_, target_, token_, on_lost_);
    ReceiveStream::Run(stream_);
  }

 private:
  GrpcKvTransport* const transport_;
  const std::string peer_;
  const std::string target_;
  const std::string token_;
  const std::shared_ptr<LostCallbackOnce> on_lost_;
  std::shared_ptr<ReceiveStream> stream_;
};

// ---- The transport ----

absl::StatusOr<std::unique_ptr<GrpcKvTransport>> GrpcKvTransport::Create(
    const GrpcKvOptions& options, KvReceiver* receiver, Listener* listener) {
  if (options.block_bytes < 1 || options.num_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrFormat("a KV pool of %d blocks of %d bytes",
                                                      options.num_blocks, options.block_bytes));
  }
  const auto bytes = static_cast<size_t>(options.block_bytes * options.num_blocks);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for a KV pool of %d bytes: %s", bytes, std::strerror(errno)));
  }
  madvise(memory, bytes, MADV_HUGEPAGE);  // Advice: may be refused.
  std::memset(memory, 0, bytes);
  const KvPool pool = {.base = static_cast<std::byte*>(memory),
                       .block_bytes = options.block_bytes,
                       .num_blocks = options.num_blocks};
  return std::unique_ptr<GrpcKvTransport>(new GrpcKvTransport(options, pool, receiver, listener));
}

GrpcKvTransport::GrpcKvTransport(const GrpcKvOptions& options, const KvPool& pool,
                                 KvReceiver* receiver, Listener* listener)
    : options_(options),
      pool_(pool),
      receiver_(receiver),
      listener_(listener),
      probe_(static_cast<size_t>(options.block_bytes)),
      service_(this) {}

GrpcKvTransport::~GrpcKvTransport() {
  {
    MutexLock lock(&mu_);
    const auto end = std::chrono::steady_clock::now() + kReleaseGrace;
    while (retained_ > 0 && std::chrono::steady_clock::now() < end) {
      released_.WaitFor(&mu_, std::chrono::milliseconds(100));
    }
    if (retained_ > 0) {
      LogWarning("gRPC did not let go of the KV pool", {{"held", retained_}});
      return;  // The process ends; the mapping ends with it.
    }
  }
  munmap(pool_.base, static_cast<size_t>(pool_.block_bytes * pool_.num_blocks));
}

void GrpcKvTransport::Retain() {
  MutexLock lock(&mu_);
  ++retained_;
}

void GrpcKvTransport::Release() {
  MutexLock lock(&mu_);
  --retained_;
  released_.SignalAll();
}

std::shared_ptr<GrpcKvTransport::SendLink> GrpcKvTransport::Forget(const std::string& token) {
  MutexLock lock(&mu_);
  const auto found = awaited_.find(token);
  if (found == awaited_.end()) return nullptr;
  std::shared_ptr<SendLink> link = std::move(found->second);
  awaited_.erase(found);
  return link;
}

absl::StatusOr<std::unique_ptr<KvInbound>> GrpcKvTransport::OpenInbound(
    const std::string& peer, const std::string& peer_target, LostCallback on_lost) {
  return std::make_unique<Inbound>(this, peer, peer_target,
                                   std::make_shared<LostCallbackOnce>(std::move(on_lost)));
}

absl::StatusOr<std::unique_ptr<KvOutbound>> GrpcKvTransport::OpenOutbound(
    const std::string& peer, const std::string& receiver_address, LostCallback on_lost) {
  if (receiver_address.size() != kTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("KV link token: %d bytes, want %d", receiver_address.size(), kTokenBytes));
  }
  auto once = std::make_shared<LostCallbackOnce>(std::move(on_lost));
  auto link = std::make_shared<SendLink>(this, once);
  {
    MutexLock lock(&mu_);
    if (!awaited_.emplace(receiver_address, link).second) {
      return absl::FailedPreconditionError("KV link token: in use already");
    }
  }
  return std::make_unique<Outbound>(this, receiver_address, std::move(link), std::move(once));
}

}  // namespace tandem
