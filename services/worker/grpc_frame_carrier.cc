#include "services/worker/grpc_frame_carrier.h"

#include <grpcpp/generic/generic_stub.h>

#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "services/server/channel.h"
#include "services/server/early_reactor.h"
#include "services/server/status_proto.h"
#include "services/worker/kv_frame_codec.h"
#include "tandem/v1/kv.pb.h"

namespace tandem {

class GrpcFrameCarrier::Sending final : public EarlyReactor<v1::FramesRequest, grpc::ByteBuffer>,
                                        public FrameStream {
 public:
  Sending(GrpcFrameCarrier* carrier, grpc::CallbackServerContext* context)
      : EarlyReactor(carrier->options_.door->calls(), context),
        source_(carrier->server_->Accept(this)) {}

  // A slice points into the pool, and its destruction destroys the payload.
  void Write(const FrameHeader& header, std::unique_ptr<FramePayload> payload) override {
    const std::span<const std::byte> bytes = payload->bytes();
    const grpc::Slice slices[] = {
        grpc::Slice(EncodeFramePrefix(header, static_cast<uint32_t>(bytes.size()))),
        // gRPC only reads it.
        grpc::Slice(
            const_cast<std::byte*>(bytes.data()), bytes.size(),
            [](void* read) { delete static_cast<FramePayload*>(read); }, payload.release())};
    grpc::ByteBuffer message(slices, 2);
    message_.Swap(&message);
    StartWrite(&message_);
  }
  void End(const absl::Status& why) override {
    // A write that waits for room in a stopped peer's window ends at once; what is in TCP already
    // ends when the keepalive has found the peer dead, and so would all without this.
    context()->TryCancel();
    Finish(ToGrpcStatus(why));
  }

  void OnWriteDone(bool ok) override {
    message_.Clear();
    source_->OnWritten(ok);
  }
  void OnCancel() override {
    source_->OnPeerGone();
    EarlyReactor::OnCancel();
  }
  void OnDone() override {
    source_.reset();
    delete this;
  }

 private:
  void OnRequest(std::shared_ptr<const v1::FramesRequest> request) override {
    if (const absl::Status begun = source_->Begin(request->token()); !begun.ok()) {
      return Finish(ToGrpcStatus(begun));
    }
    HearWords();
  }
  void OnWord() override { source_->OnReady(); }

  std::unique_ptr<FrameSource> source_;
  grpc::ByteBuffer message_;
};

GrpcFrameCarrier::Service::Service(GrpcFrameCarrier* carrier)
    : FleetService(carrier->options_.door) {
  AddMethod<grpc::ByteBuffer>(kFramesMethod, [carrier](grpc::CallbackServerContext* context) {
    auto* const stream = new Sending(carrier, context);
    stream->AwaitRequest();
    return stream;
  });
}

class GrpcFrameCarrier::Receiving final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public DialledStream {
 public:
  Receiving(const GrpcFrameOptions& options, const std::string& target, const std::string& token,
            std::shared_ptr<FrameTarget> to)
      : to_(std::move(to)),
        channel_(DialKv(target, options.payload_bytes, options.liveness_scale, options.tls)),
        stub_(channel_),
        proof_(&options.secret, channel_, target, kFramesMethod, &context_) {
    v1::FramesRequest request;
    request.set_token(token);
    request_ = Serialized(request);
  }

  static void Run(std::shared_ptr<Receiving> stream) {
    stream->self_ = stream;
    stream->stub_.PrepareBidiStreamingCall(&stream->context_, kFramesMethod, {}, stream.get());
    stream->AddHold();  // Whoever is ready writes on a thread of its own.
    stream->StartWrite(&stream->request_);
    stream->proof_.Start([raw = stream.get()] { raw->StartCall(); });
  }

  void Ready() override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    owes_ready_ = true;
    WriteReady();
  }
  void Cancel() override { proof_.Cancel(); }

  void OnWriteDone(bool ok) override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    writing_ = false;
    if (ok) WriteReady();
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (!proof_.Proven(ok)) return EndWrites();
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return EndWrites();  // OnDone has the reason.
    broken_ = Take();
    message_.Clear();
    if (broken_.ok()) return StartRead(&message_);
    context_.TryCancel();
    EndWrites();
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<FrameTarget> to =
        std::move(to_);  // Goes last: the transport waits for it.
    to->OnEnded(broken_.ok() ? proof_.WhyEnded({grpc::StatusCode::UNAVAILABLE,
                                                "the KV stream ended: " + status.error_message()})
                             : broken_);
    self_.reset();  // Perhaps the last reference: nothing of this may be touched now.
  }

 private:
  static grpc::ByteBuffer Serialized(const v1::FramesRequest& request) {
    const grpc::Slice slice(request.SerializeAsString());
    return grpc::ByteBuffer(&slice, 1);
  }
  void WriteReady() REQUIRES(mu_) {
    if (!owes_ready_ || writing_ || ended_) return;
    owes_ready_ = false;
    writing_ = true;
    StartWrite(&ready_);
  }
  void EndWrites() EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (std::exchange(ended_, true)) return;
    }
    RemoveHold();
  }

  // Only a peer that breaks the format is an error, or a link that is closed.
  absl::Status Take() {
    std::vector<grpc::Slice> slices;
    if (!message_.Dump(&slices).ok()) return absl::InvalidArgumentError("frame: unreadable");
    std::vector<std::string_view> pieces;
    for (const grpc::Slice& slice : slices) {
      pieces.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    const absl::StatusOr<FrameView> frame = DecodeFrame(pieces);
    return frame.ok() ? to_->OnFrame(frame->header, frame->payload) : frame.status();
  }

  std::shared_ptr<FrameTarget> to_;  // Until OnDone.
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  FleetCall proof_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer message_;
  absl::Status broken_;
  const grpc::ByteBuffer ready_ = Serialized(v1::FramesRequest());
  Mutex mu_;
  bool writing_ GUARDED_BY(mu_) = true;  // From the request on.
  bool owes_ready_ GUARDED_BY(mu_) = false;
  bool ended_ GUARDED_BY(mu_) = false;  // Nothing is written any more.
  std::shared_ptr<Receiving> self_;     // While the RPC runs.
};

std::shared_ptr<DialledStream> GrpcFrameCarrier::Dial(const std::string& target,
                                                      const std::string& token,
                                                      std::shared_ptr<FrameTarget> to) {
  auto stream = std::make_shared<Receiving>(options_, target, token, std::move(to));
  Receiving::Run(stream);
  return stream;
}

}  // namespace tandem
