// The prefill side of KV transfers: prompts that are computed here for decode workers. Their blocks
// are sent as they finish, and kept until the receiver has committed, cancelled, gone or let its
// lease run out.
//
// It knows what travels, not how it is computed: the engine says which blocks are final, and hears
// when they are not needed any more. A value: the transfer explorer copies and compares it.

#ifndef TANDEM_RUNTIME_ENGINE_PREFILL_SIDE_H_
#define TANDEM_RUNTIME_ENGINE_PREFILL_SIDE_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/expiry_queue.h"
#include "runtime/engine/ended_keys.h"
#include "runtime/engine/outbox.h"
#include "runtime/engine/transfer_blocks.h"
#include "runtime/engine/work_keys.h"
#include "runtime/kv_cache/block_pool.h"
#include "runtime/protocol/lease_keeper.h"
#include "runtime/protocol/peer_messages.h"
#include "runtime/protocol/prefill_transfer.h"

namespace tandem {

// What computes the prompts.
class PrefillHost {
 public:
  virtual ~PrefillHost() = default;

  // The prompt is forgotten here, whatever it came to: it is not computed any further, and its
  // blocks go.
  virtual void EndPrompt(const JobKey& key) = 0;
};

// Engine thread only.
class PrefillSide {
 public:
  struct Options {
    int64_t block_bytes = 0;
    int64_t lease_us = 0;
    int32_t max_frames_ahead = 0;
  };
  // All outlive the side.
  struct Parts {
    TransferBlocks* blocks = nullptr;
    LeaseKeeper* leases = nullptr;
    PeerOutbox* outbox = nullptr;
    PrefillHost* host = nullptr;
    const int64_t* now_us = nullptr;
  };
  PrefillSide(const Options& options, const Parts& parts) : options_(options), parts_(parts) {}
  void set_parts(const Parts& parts) { parts_ = parts; }  // A copy has parts of its own.

  // ---- A prompt comes ----
  struct Prompt {
    JobKey key;
    uint64_t serial = 0;  // Never used again, unlike the key, which is a peer's word.
    int32_t first_block = 0;
    int32_t num_blocks = 0;
    int64_t time_left_us = 0;
  };
  // `fits`: why not, where the engine cannot take it. True: it is to be computed from now on.
  // Otherwise it is refused, or, of a copy of what is or was here, nothing happens.
  bool OnSubmit(const Prompt& prompt, absl::Status fits, int64_t retry_after_us);

  // ---- Decode workers and transport ----
  // Everything but PrefillSubmit.
  void OnMessage(SessionId decode, const DecodeToPrefill& message);
  void OnDecodeLost(SessionId decode);
  void OnFrameSent(uint64_t send_id, bool ok);

  // ---- The prompt is computed; `final_blocks` is the part of its table that will not change ----
  void OnStarted(const JobKey& key, int32_t cached_tokens, std::span<const BlockId> final_blocks);
  // Not OK, as the next one: the device could not read the blocks, and the prompt is refused.
  absl::Status OnChunk(const JobKey& key, std::span<const BlockId> final_blocks);
  // `goes_on`: some choice of it. If not, nothing travels.
  absl::Status OnFirstToken(const JobKey& key, FirstToken first, bool goes_on,
                            std::span<const BlockId> final_blocks);
  void Refuse(const JobKey& key, const absl::Status& status);
  void RefuseQueued(const absl::Status& status);

  // ---- Time ----
  void Expire();
  // What Expire does to a prompt whose lease is due.
  void ExpireLease(const JobKey& key);
  int64_t next_us() const;

  bool empty() const { return jobs_.empty(); }
  // Some prompt has blocks.
  bool holds_blocks() const;
  void CountPins(std::map<BlockId, int32_t>* pins) const;
  // Internal: what is kept of frames on their way, of their links and of what is renewed does not
  // agree.
  absl::Status Audit() const;

  // Appends bytes that are equal for equal states.
  void AppendState(std::string* bytes) const;

 private:
  struct Job {
    JobKey key;
    uint64_t serial = 0;
    PrefillTransfer transfer;
    std::vector<BlockId> blocks;  // Final ones, from first_block on.
  };
  // A block that a transport reads.
  struct FrameSend {
    JobKey job;
    uint64_t serial = 0;  // The job's: another one may come to have its key.
    int32_t ordinal = 0;
    BlockId block = 0;
  };
  // Frames for one decode worker.
  struct Link {
    int32_t num_sending = 0;          // Handed to the transport, and not gone yet.
    std::map<uint64_t, JobKey> held;  // By serial: whose next frames wait for these.
  };

  int64_t now_us() const { return *parts_.now_us; }
  Job* Find(SessionId decode, JobId job);
  bool Knows(const JobKey& key) const;
  void OnCancel(SessionId decode, const PrefillCancel& cancel);
  absl::Status OfferBlocks(Job* job, std::span<const BlockId> final_blocks);
  absl::Status PumpOffered(Job* job, const absl::Status& offered);
  void Pump(Job* job);
  void PumpHeld(SessionId decode);
  void Refuse(Job* job, const absl::Status& status);
  void Forget(Job* job);
  void WithdrawFrames(const Job& job);
  absl::Status AuditRenewals() const;

  const Options options_;
  Parts parts_;
  // Ordered maps: the order of events must not depend on addresses or hashes.
  std::map<JobKey, Job> jobs_;
  ExpiryQueue<JobKey> leases_;
  ExpiryQueue<JobKey> deadlines_;
  EndedKeys<JobKey> ended_;
  std::map<uint64_t, FrameSend> sends_;
  std::map<JobKey, std::set<uint64_t>> sends_of_;  // A job's sends_, if it has any.
  std::map<SessionId, Link> links_;                // To whom frames are on their way.
  uint64_t next_send_id_ = 1;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_PREFILL_SIDE_H_
