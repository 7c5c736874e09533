// Everything an engine can cause outside itself: what it says to routers, and to other workers. A
// worker implements it with gRPC sessions and a KvTransport, the simulator with a virtual network.
// Calls only enqueue: none fails, and none but BeginChunks blocks; what cannot be delivered shows
// as a lost session.

#ifndef TANDEM_RUNTIME_ENGINE_OUTBOX_H_
#define TANDEM_RUNTIME_ENGINE_OUTBOX_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/kv_cache/block_pool.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/peer_messages.h"
#include "runtime/protocol/peer_pauses.h"
#include "runtime/protocol/router_messages.h"

namespace tandem {

// To the router of an attempt, or, of a prompt that is computed for a decode worker, to every one:
// this worker does not know whose it is.
struct ChunkNotice {
  std::optional<SessionId> router;
  ChunkBegun chunk;
};

// Engine thread only.
class Outbox {
 public:
  virtual ~Outbox() = default;

  // Joins the session's next StepBatch, which leaves when Engine::Step returns, or before a chunk
  // begins.
  virtual void ToRouter(SessionId router, RouterEvent event) = 0;

  // The step that begins now computes these; not called if there are none. Returns when they have
  // left the process, with what ToRouter has said before, or when it has waited long enough for a
  // router that does not read: the step may be the process's last.
  virtual void BeginChunks(std::span<const ChunkNotice> chunks) = 0;

  // A prompt, or what a resumed stream has to be given again, was computed here: it arrived at
  // `arrived_us`, its first step began at `begun_us`, and its last one ends now.
  virtual void OnPromptComputed(int64_t arrived_us, int64_t begun_us) = 0;
};

// Engine thread only.
class PeerOutbox {
 public:
  virtual ~PeerOutbox() = default;

  // To a prefill worker; dials it at the first message. A peer that cannot be reached, or whose
  // terms differ (peer_terms.h), comes back as Engine::OnPrefillLost.
  virtual void ToPrefill(const PrefillPeer& prefill, DecodeToPrefill message) = 0;

  // To the decode worker at the other end of a session that it dialled.
  virtual void ToDecode(SessionId decode, PrefillToDecode message) = 0;

  // Sends the block's bytes behind `header`. The block stays untouched until
  // Engine::OnFrameSent(send_id), which comes exactly once, also if the peer is lost.
  virtual void SendFrame(SessionId decode, const FrameHeader& header, BlockId block,
                         uint64_t send_id) = 0;

  // Nobody waits for that frame any more: if its first byte has not left, it need not travel, and
  // OnFrameSent comes soon.
  virtual void WithdrawFrame(SessionId decode, uint64_t send_id) = 0;

  // So long after they were granted, all of a prompt's blocks are here and verified.
  virtual void OnTransferred(int64_t took_us) = 0;

  // Prompts are computed here for a while instead of there. `detail` is for people.
  virtual void OnPeerPaused(const WorkerId& prefill, PauseReason reason,
                            const std::string& detail) = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_OUTBOX_H_
