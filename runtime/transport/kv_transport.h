// Moves KV blocks from a prefill worker's pool into places that a decode worker's KvReceiver
// chooses.
//
// A link joins one sender and one receiver for as long as their Session lives. Each end has address
// bytes, which travel in the Session's Hellos:
//
//   decode:  inbound = OpenInbound(...);             Hello carries inbound->address()
//   prefill: outbound = OpenOutbound(hello.address); the answer carries outbound->address()
//   decode:  inbound->Attach(answer.address)
//
// A frame's header, which may arrive before its payload, is given a place by KvReceiver; the
// payload lands there and is checksummed as it lies; Listener hears the result (frame_sink.h).
// Links are probed when they open: Listener hears the path that was chosen and its speed
// (link_probe.h).
//
// Any thread, unless said otherwise. Nothing here waits for a peer.

#ifndef TANDEM_RUNTIME_TRANSPORT_KV_TRANSPORT_H_
#define TANDEM_RUNTIME_TRANSPORT_KV_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/protocol/kv_receiver.h"
#include "runtime/protocol/peer_messages.h"
#include "runtime/transport/kv_pool.h"

namespace tandem {

// What a probe found. Bytes per second of whole blocks, checksum included.
struct LinkReport {
  std::string peer;  // Worker name.
  std::string path;  // "shared memory", "ucx message", "grpc", "nccl".
  double bytes_per_second = 0;
};

// The sender's end.
class KvOutbound {
 public:
  // Every send that has not completed does so, not ok, soon after, at the latest when a peer that
  // does not read has been found dead; the destructor does not wait.
  virtual ~KvOutbound() = default;

  // For the other end's Attach.
  virtual const std::string& address() const = 0;

  // Only enqueues. The block stays untouched until Listener::OnFrameSent(send_id), exactly once.
  virtual void Send(const FrameHeader& header, int32_t block, uint64_t send_id) = 0;

  // If the frame still waits for its turn it never travels, and OnFrameSent says not ok; otherwise
  // nothing.
  virtual void Withdraw(uint64_t send_id) = 0;
};

// The receiver's end. Its frames get no place any more once it is destroyed.
class KvInbound {
 public:
  virtual ~KvInbound() = default;
  virtual const std::string& address() const = 0;

  // Once, with the sender's address. What goes wrong arrives as on_lost.
  virtual void Attach(const std::string& sender_address) = 0;
};

class KvTransport {
 public:
  // Called on the transport's threads; only hands over.
  class Listener {
   public:
    virtual ~Listener() = default;
    // No byte of the block will be read any more. `ok` says that it reached the peer's transport,
    // not that the peer wanted it.
    virtual void OnFrameSent(uint64_t send_id, bool ok) = 0;
    virtual void OnFrameReceived(const ReceivedFrame& frame, int64_t payload_bytes) = 0;
    virtual void OnLinkProbed(const LinkReport& report) = 0;
    // Once for each of these, when its link is no more.
    virtual void OnLinkClosed(const std::string& peer, const std::string& path) = 0;
  };

  // At most once a link, on a transport thread, never after the link's destructor has returned.
  using LostCallback = std::function<void(absl::Status)>;

  // All links are destroyed before.
  virtual ~KvTransport() = default;

  virtual std::string_view name() const = 0;  // "ucx", "grpc" or "nccl".
  virtual const KvPool& pool() const = 0;     // For as long as this lives.

  // `peer_target` is where the sender is dialled, host:port; `peer` its name for reports.
  virtual absl::StatusOr<std::unique_ptr<KvInbound>> OpenInbound(const std::string& peer,
                                                                 const std::string& peer_target,
                                                                 LostCallback on_lost) = 0;

  // FailedPrecondition if no path leads to the peer, with the reason; InvalidArgument if its
  // address is not one.
  virtual absl::StatusOr<std::unique_ptr<KvOutbound>> OpenOutbound(
      const std::string& receiver_address, LostCallback on_lost) = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_KV_TRANSPORT_H_
