// KvTransport from GPU to GPU over NCCL.
//
// A link has a communicator of its own, of two ranks. Headers come down a stream of frames that the
// receiver dials (stream/frame_stream.h), which proves both ends, ends with either, and has no
// blocks here; a message of it has the headers of a group. Their blocks follow over NCCL, in the
// same order, and every block is as long as every other. So the receiver takes one block for each
// header, and cannot take another's:
//
//   sender:    headers down the stream, Sends out of the pool   a group is one operation; at most
//   receiver:  for each header: Recv into a slot of its own     NcclPair::kWindow blocks a link
//              arrived: FrameSink::Begin, copied into its place, checksummed there; or dropped
//
// NCCL writes to slots alone, never to a block of the pool. Each link that has a peer has a thread,
// which makes all calls of NCCL for it; one more makes unique ids ahead of time.

#ifndef TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
#define TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_TRANSPORT_H_

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"
#include "runtime/transport/frame_sink.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/holders.h"
#include "runtime/transport/kv_transport.h"
#include "runtime/transport/nccl/nccl_api.h"
#include "runtime/transport/nccl/nccl_pair.h"
#include "runtime/transport/stream/frame_stream.h"
#include "runtime/transport/stream/named_links.h"

namespace tandem {

struct NcclOptions {
  KvPool pool;                              // In a device's memory.
  NcclApi* api = nullptr;                   // Outlives the transport.
  std::chrono::milliseconds stall{20'000};  // A link on which nothing moves for as long is lost.
};

class NcclTransport final : public KvTransport {
 public:
  // What workers leave of the device's memory for it, beside what NCCL itself takes: what a link's
  // probe sends, and slots for so many receiving links. More links take theirs when they come.
  static constexpr int kPlannedLinks = 8;
  static constexpr int64_t DeviceBytes(int64_t block_bytes) {
    return (1 + kPlannedLinks * kSlots) * block_bytes;
  }

  // The most that a frame carries behind its header: those of the rest of a group.
  static constexpr int64_t kMaxPayloadBytes = (NcclPair::kGroup - 1) * kFrameHeaderBytes;

  // `receiver` and `listener` outlive the transport. Errors of CheckPool; FailedPrecondition if the
  // pool is the host's, or NCCL does not work; ResourceExhausted if the device has no memory left.
  static absl::StatusOr<std::unique_ptr<NcclTransport>> Create(
      const NcclOptions& options, std::unique_ptr<FrameCarrier> carrier, KvReceiver* receiver,
      Listener* listener);
  // Nobody dials the carrier any more. Waits for NCCL and the carrier to let go of the pool, as
  // long as it takes.
  ~NcclTransport() override;

  std::string_view name() const override { return "nccl"; }
  const KvPool& pool() const override { return options_.pool; }
  absl::StatusOr<std::unique_ptr<KvInbound>> OpenInbound(const std::string& peer,
                                                         const std::string& peer_target,
                                                         LostCallback on_lost) override;
  // Unavailable while no unique id is ready: NCCL is behind in making them.
  absl::StatusOr<std::unique_ptr<KvOutbound>> OpenOutbound(const std::string& receiver_address,
                                                           LostCallback on_lost) override;

 private:
  class Link;
  class SendLink;
  class ReceiveLink;
  class Inbound;

  NcclTransport(const NcclOptions& options, std::unique_ptr<FrameCarrier> carrier,
                KvReceiver* receiver, Listener* listener);

  // Gives the link a thread, or closes it.
  void Start(const std::shared_ptr<Link>& link) EXCLUDES(mu_);
  // Makes ids, and joins the threads of links that have ended.
  void Keep() EXCLUDES(mu_);
  std::list<std::thread> TakeEnded() REQUIRES(mu_);
  absl::Status MakeId() EXCLUDES(mu_);

  // Blocks of the device that a receiving link has: those that are under way, and one for what has
  // no place.
  static constexpr int64_t kSlots = NcclPair::kWindow + 1;

  size_t block_bytes() const { return static_cast<size_t>(options_.pool.kv.block_bytes); }
  // Slots of a receiving link. What has been given back is given out again: to free memory waits
  // for all that the device does.
  absl::StatusOr<std::byte*> TakeSlots() EXCLUDES(mu_);
  void GiveBackSlots(std::byte* slots) EXCLUDES(mu_);

  const NcclOptions options_;
  NcclApi* const api_;
  Listener* const listener_;
  const FrameSink sink_;
  std::byte* probe_ = nullptr;  // The device's: a block of zeros.

  Holders holders_;  // What threads and the carrier hold of ours.
  NamedLinks links_{&holders_};

  Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<NcclUniqueId> ids_ GUARDED_BY(mu_);                  // Told to nobody yet.
  std::chrono::steady_clock::time_point next_id_ GUARDED_BY(mu_);  // Not before: the last failed.
  std::vector<std::byte*> free_slots_ GUARDED_BY(mu_);
  std::list<std::thread> threads_ GUARDED_BY(mu_);  // One a link.
  std::vector<std::thread::id> ended_ GUARDED_BY(mu_);
  std::thread keeper_;
  const std::unique_ptr<FrameCarrier> carrier_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
