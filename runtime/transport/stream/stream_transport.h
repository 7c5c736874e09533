// KvTransport over streams of frames that a FrameCarrier has, such as gRPC's.
//
// The receiver dials (a connection of its own, so that blocks never share one with control) and
// names the link by a token that it drew; frames come down the stream. A stream reads a block where
// it lies in the pool; that it destroys the payload is the proof that it has been read. One frame
// of a link is inside the carrier at a time.
//
// Blocks of a device's pool go through pinned memory of the host: a link copies each when its turn
// comes.

#ifndef TANDEM_RUNTIME_TRANSPORT_STREAM_STREAM_TRANSPORT_H_
#define TANDEM_RUNTIME_TRANSPORT_STREAM_STREAM_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/transport/frame_sink.h"
#include "runtime/transport/holders.h"
#include "runtime/transport/kv_transport.h"
#include "runtime/transport/stream/frame_stream.h"
#include "runtime/transport/stream/named_links.h"
#include "runtime/transport/stream/staging_buffers.h"

namespace tandem {

class StreamTransport final : public KvTransport {
 public:
  // `receiver` and `listener` outlive the transport. Errors of CheckPool; ResourceExhausted if
  // there is no memory for the pool, or none to stage a device's blocks.
  static absl::StatusOr<std::unique_ptr<StreamTransport>> Create(
      const KvPool& pool, std::unique_ptr<FrameCarrier> carrier, KvReceiver* receiver,
      Listener* listener);
  // Nobody dials the carrier any more. Waits for it to let go of the pool, as long as it takes.
  ~StreamTransport() override;

  std::string_view name() const override { return carrier_->name(); }
  const KvPool& pool() const override { return pool_; }
  absl::StatusOr<std::unique_ptr<KvInbound>> OpenInbound(const std::string& peer,
                                                         const std::string& peer_target,
                                                         LostCallback on_lost) override;
  absl::StatusOr<std::unique_ptr<KvOutbound>> OpenOutbound(const std::string& receiver_address,
                                                           LostCallback on_lost) override;

 private:
  class SendLink;  // Outlives its handle until its last payload is gone.
  class Payload;
  class ReceiveLink;
  class Inbound;

  // `owned`: the pool goes with this.
  StreamTransport(const KvPool& pool, bool owned, std::unique_ptr<StagingBuffers> staging,
                  std::unique_ptr<FrameCarrier> carrier, KvReceiver* receiver, Listener* listener);

  const KvPool pool_;
  const bool owns_pool_;
  Listener* const listener_;
  const FrameSink sink_;
  const std::vector<std::byte> probe_;             // A block of zeros.
  const std::unique_ptr<StagingBuffers> staging_;  // Null where the pool is the host's.

  Holders holders_;  // What the carrier holds of ours.
  NamedLinks links_{&holders_};
  const std::unique_ptr<FrameCarrier> carrier_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_STREAM_STREAM_TRANSPORT_H_
