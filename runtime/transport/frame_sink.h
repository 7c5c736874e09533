// What becomes of a frame between its header and its last byte, in every transport.
//
//   if (std::optional<FrameSink::Landing> landing = sink.Begin(header)) {
//     ...                         // The payload comes to landing->data().
//     landing->Complete(crc32c);  // The checksum of the bytes as they lie there.
//   }                             // Without Complete: it will never come.
//
// Begin needs the header alone, so that may travel ahead of the payload and on another path: a
// transport then posts its receive, or its read of the sender's memory, right into the block. The
// block is in flight from Begin on until its landing is complete or gone, whatever becomes of the
// link, the reservation or the peer in between.
//
// Any thread; one thread at a time uses a landing.

#ifndef TANDEM_RUNTIME_TRANSPORT_FRAME_SINK_H_
#define TANDEM_RUNTIME_TRANSPORT_FRAME_SINK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "runtime/protocol/kv_receiver.h"
#include "runtime/transport/kv_transport.h"

namespace tandem {

class FrameSink {
 public:
  // The place of one frame, which has been given out to its payload.
  class Landing {
   public:
    Landing(Landing&& other) noexcept
        : sink_(other.sink_), place_(std::exchange(other.place_, std::nullopt)) {}
    Landing& operator=(Landing&&) = delete;
    ~Landing() { Finish(false, 0); }  // No byte of it can be written any more.

    // In a device's pool it is an address that the host does not follow.
    std::byte* data() const { return sink_->pool_.block(place_->block); }

    // At most once: all bytes are there, none can be written any more.
    void Complete(uint32_t payload_crc32c) { Finish(true, payload_crc32c); }

   private:
    friend class FrameSink;
    Landing(const FrameSink* sink, const KvReceiver::Place& place) : sink_(sink), place_(place) {}
    void Finish(bool ok, uint32_t payload_crc32c) {
      if (!place_.has_value()) return;
      const KvReceiver::Place place = *std::exchange(place_, std::nullopt);
      sink_->listener_->OnFrameReceived(sink_->receiver_->Finish(place, ok, payload_crc32c),
                                        ok ? sink_->pool_.kv.block_bytes : 0);
    }

    const FrameSink* const sink_;
    std::optional<KvReceiver::Place> place_;  // Nothing: finished.
  };

  // `receiver` and `listener` outlive this, and this its landings.
  FrameSink(const KvPool& pool, KvReceiver* receiver, KvTransport::Listener* listener)
      : pool_(pool), receiver_(receiver), listener_(listener) {}

  // InvalidArgument, with the numbers, for a header of another length than a block's, or of another
  // shard: whoever sends it is no peer of ours.
  absl::Status Check(const FrameHeader& header) const {
    if (header.length_bytes == pool_.kv.block_bytes && header.shard == KvShard()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: %d bytes of %s, a block here has %d of %s", header.length_bytes,
                        header.shard.ToString(), pool_.kv.block_bytes, KvShard().ToString()));
  }

  // For a header that passes Check. Nothing: the payload has no place, and is to be
  // dropped wherever it is.
  std::optional<Landing> Begin(const FrameHeader& header) const {
    const std::optional<KvReceiver::Place> place = receiver_->Begin(header);
    if (!place.has_value()) return std::nullopt;
    return Landing(this, *place);
  }

 private:
  const KvPool pool_;
  KvReceiver* const receiver_;
  KvTransport::Listener* const listener_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_FRAME_SINK_H_
