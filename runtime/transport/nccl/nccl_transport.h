// KvTransport from GPU to GPU over NCCL.
//
// A link has a communicator of its own, of two ranks. Headers come down a stream of frames that the
// receiver dials (stream/frame_stream.h), which proves both ends, ends with either, and has no
// blocks here; a message of it has the headers of a group. Their blocks follow over NCCL, in the
// same order, and every block is as long as every other. So the receiver takes one block for each
// header, and cannot take another's.
//
// NCCL's operations are kernels that wait for their peer, and a GPU may run them one after another:
// with more than one at a time two GPUs could wait for each other. So an operation begins once both
// GPUs are free for it and nothing else. GPUs are held in the order of their precedence, a drawn
// number, the lower one first, as locks are taken in one order; and slots before their GPU:
//
//   sender                                        receiver
//   holds its GPU, if it has precedence
//                     a header of no block  ──▶
//                                                 has slots, holds its GPU
//                                           ◀──   Ready
//   holds its GPU, if it has not yet
//                        headers of a group ──▶
//   Send out of the pool                          Recv into the slots
//   its GPU is free                               its GPU is free
//                                                 for each block: FrameSink::Begin, copied into its
//                                                 place, checksummed there; or dropped
//
// Nobody keeps a GPU for long while a peer holds another, or does not answer: a sender gives its
// own up and waits for Ready without it; and where it does not get it then, or nothing waits any
// more, it answers Ready with a header of no block.
//
// NCCL writes to slots alone, never to a block of the pool. Each link that has a peer has a thread,
// which makes all calls of NCCL for it; one more brings blocks to their places, and one makes
// unique ids ahead of time.

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
#include "runtime/transport/nccl/nccl_ids.h"
#include "runtime/transport/nccl/nccl_pair.h"
#include "runtime/transport/nccl/turns.h"
#include "runtime/transport/stream/frame_stream.h"
#include "runtime/transport/stream/named_links.h"

namespace tandem {

struct NcclOptions {
  KvPool pool;             // In a device's memory.
  NcclApi* api = nullptr;  // Outlives the transport.
  // How long a peer may take to join, and a turn to come, before the link is lost. Other waits are
  // parts of it (nccl_transport.cc).
  std::chrono::milliseconds stall{20'000};
};

class NcclTransport final : public KvTransport {
 public:
  // What it takes of the device's memory, beside what NCCL itself takes.
  static constexpr int64_t DeviceBytes(int64_t block_bytes) {
    return static_cast<int64_t>(kNumSlots + 2) * block_bytes;
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
  // The threads of links that have ended.
  void JoinEnded() EXCLUDES(mu_);

  // What a receiving link has of the slots: those of one operation. While one arrives, another is
  // brought to its place.
  static constexpr int kNumGroups = 2;
  static constexpr size_t kNumSlots = kNumGroups * NcclPair::kGroup;

  struct Arrived {
    std::shared_ptr<ReceiveLink> link;
    std::vector<FrameHeader> group;
    Turns::Turn slots;
  };
  // Its blocks come to their places, on the lander's thread.
  void LandLater(Arrived arrived) EXCLUDES(mu_);
  void LandAll() EXCLUDES(mu_);

  size_t block_bytes() const { return static_cast<size_t>(options_.pool.kv.block_bytes); }
  std::byte* Slot(const Turns::Turn& slots, size_t index) const {
    return memory_ +
           (static_cast<size_t>(slots.number()) * NcclPair::kGroup + index) * block_bytes();
  }
  // A block of zeros, which probes send, and one that may hold anything, where they end.
  std::byte* zeros() const { return memory_ + kNumSlots * block_bytes(); }
  std::byte* nowhere() const { return memory_ + (kNumSlots + 1) * block_bytes(); }

  const NcclOptions options_;
  NcclApi* const api_;
  Listener* const listener_;
  const FrameSink sink_;
  std::unique_ptr<NcclIds> ids_;
  uint64_t precedence_ = 0;
  std::byte* memory_ = nullptr;  // The device's: slots, zeros, nowhere.

  Holders holders_;  // What threads and the carrier hold of ours.
  NamedLinks links_{&holders_};
  Turns gpu_turns_{1};
  Turns slot_turns_{kNumGroups};

  Mutex mu_;
  bool stopping_ GUARDED_BY(mu_) = false;
  CondVar landing_;
  std::list<Arrived> arrived_ GUARDED_BY(mu_);
  std::list<std::thread> threads_ GUARDED_BY(mu_);  // One a link.
  std::vector<std::thread::id> ended_ GUARDED_BY(mu_);
  std::thread lander_;
  const std::unique_ptr<FrameCarrier> carrier_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
