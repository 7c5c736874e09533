// What StreamTransport, and NcclTransport for its headers, need of an RPC system: streams of
// frames, each from a sender to the receiver that dialled it. services/worker has them of gRPC
// (grpc_frame_carrier.h), tests of this process.
//
//   receiver's process                                     sender's process
//   FrameCarrier::Dial(target, token, to)      ────▶       FrameServer::Accept(stream)
//   to->OnFrame(header, payload) …             ◀ frames ─  stream->Write(header, payload) …
//   dialled->Ready()                           ─ ready ▶   source->OnReady()
//   to->OnEnded(why)                                       ~FrameSource
//
// A carrier proves both ends to each other before anything else is said, and bounds what is on its
// way. Frames of one stream arrive in order, whole, or the stream ends. Blocks may go another way
// (runtime/transport/nccl): then the payload of a frame is the headers of others.

#ifndef TANDEM_RUNTIME_TRANSPORT_STREAM_FRAME_STREAM_H_
#define TANDEM_RUNTIME_TRANSPORT_STREAM_FRAME_STREAM_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/protocol/peer_messages.h"

namespace tandem {

// ---- The sender's end ----

// Bytes that a stream reads where they lie, until it destroys this: on any thread, perhaps within
// Write.
class FramePayload {
 public:
  explicit FramePayload(std::span<const std::byte> bytes) : bytes_(bytes) {}
  virtual ~FramePayload() = default;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  const std::span<const std::byte> bytes_;
};

// A stream on which frames are sent, made by the carrier. Lives until its FrameSource is destroyed.
// Calls only begin something: what comes of it is said on another stack.
class FrameStream {
 public:
  virtual ~FrameStream() = default;
  // FrameSource::OnWritten follows; before it there is no other Write.
  virtual void Write(const FrameHeader& header, std::unique_ptr<FramePayload> payload) = 0;
  // At once, though the receiver may not read what is being written. Any number of times.
  virtual void End(const absl::Status& why) = 0;
};

// What such a stream serves, made by the transport. Destroyed when there will be no call of it any
// more; its stream is not touched after that.
class FrameSource {
 public:
  virtual ~FrameSource() = default;
  // Once, the receiver has named its link. Not OK: the stream is to end with it.
  virtual absl::Status Begin(const std::string& token) = 0;
  // Not `ok`: the stream is broken.
  virtual void OnWritten(bool ok) = 0;
  // After Begin: the receiver says that it is ready (over NCCL: its GPU is held for an operation).
  virtual void OnReady() = 0;
  // The receiver has left. Perhaps during Begin, or before it.
  virtual void OnPeerGone() = 0;
};

class FrameServer {
 public:
  virtual ~FrameServer() = default;
  // For each stream that is dialled here, before anything else of it. Any thread.
  virtual std::unique_ptr<FrameSource> Accept(FrameStream* stream) = 0;
};

// ---- The receiver's end ----

// Where frames arrive, made by the transport. One call at a time.
class FrameTarget {
 public:
  virtual ~FrameTarget() = default;
  // `payload` is the whole of it, in pieces, good for this call, and perhaps not as long as the
  // header says. Not OK: the stream is to end.
  virtual absl::Status OnFrame(const FrameHeader& header,
                               std::span<const std::string_view> payload) = 0;
  // Last, with what to tell the engine.
  virtual void OnEnded(const absl::Status& why) = 0;
};

// A stream on which frames come, made by the carrier.
class DialledStream {
 public:
  virtual ~DialledStream() = default;
  // Tells the sender that the receiver is ready, if the stream has not ended. Not again before a
  // frame has answered it. Any thread.
  virtual void Ready() = 0;
  // Ends it, soon: OnEnded follows still. Any thread.
  virtual void Cancel() = 0;
};

// ---- Both ----

class FrameCarrier {
 public:
  // No stream is left, of either kind.
  virtual ~FrameCarrier() = default;
  virtual std::string_view name() const = 0;  // The transport's and its path's: "grpc".
  // Once, before anybody can dial this process. `server` outlives all streams.
  virtual void Serve(FrameServer* server) = 0;
  // Waits for nobody. The stream keeps `to` until OnEnded has returned.
  virtual std::shared_ptr<DialledStream> Dial(const std::string& target, const std::string& token,
                                              std::shared_ptr<FrameTarget> to) = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_STREAM_FRAME_STREAM_H_
