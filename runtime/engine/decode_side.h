// The decode side of KV transfers: prompts of ours that prefill workers compute. Promise, grant,
// arrival, commit.
//
// It knows what travels; whose prompt it is, and what becomes of it afterwards, is the engine's. A
// value: the transfer explorer copies and compares it.

#ifndef TANDEM_RUNTIME_ENGINE_DECODE_SIDE_H_
#define TANDEM_RUNTIME_ENGINE_DECODE_SIDE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/expiry_queue.h"
#include "runtime/engine/outbox.h"
#include "runtime/engine/transfer_blocks.h"
#include "runtime/engine/work_keys.h"
#include "runtime/kv_cache/block_pool.h"
#include "runtime/protocol/decode_transfer.h"
#include "runtime/protocol/grant_policy.h"
#include "runtime/protocol/kv_receiver.h"
#include "runtime/protocol/lease_keeper.h"
#include "runtime/protocol/peer_messages.h"
#include "runtime/protocol/peer_pauses.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/protocol/times.h"
#include "runtime/scheduler/sequence.h"

namespace tandem {

// What DecodeSide asks of the owner of attempts, which calls End when one ends, in whatever call.
class DecodeHost {
 public:
  virtual ~DecodeHost() = default;

  // ---- Blocks ----
  // How many blocks a grant may take now.
  virtual int32_t GrantableBlocks() const = 0;
  // Tries to have so many for a prompt of this order.
  virtual void MakeRoom(uint64_t order, int32_t num_blocks) = 0;
  // Appends `num_blocks` fresh ones, no more than GrantableBlocks, to the prompt's table.
  virtual std::vector<BlockId> AppendBlocks(const AttemptKey& attempt, int32_t num_blocks) = 0;

  // ---- What came ----
  // The first token of each choice. `cached_tokens`: that the prefill worker had not to compute.
  virtual void OnFirstToken(const AttemptKey& attempt, const FirstToken& first,
                            int32_t cached_tokens) = 0;
  // All blocks are here and verified, and first tokens known. The transfer is over.
  virtual void OnTransferred(const AttemptKey& attempt) = 0;
  // The transfer is given up but not the attempt: its prompt is computed here. First tokens that
  // were delivered stay delivered.
  virtual void ComputeHere(const AttemptKey& attempt) = 0;
  // `last` goes to its router, and the attempt has ended.
  virtual void EndAttempt(const AttemptKey& attempt, RouterEvent last) = 0;
};

// Engine thread only.
class DecodeSide {
 public:
  struct Options {
    int32_t num_blocks = 0;  // The pool's size.
    LivenessTimes times;
  };
  // All outlive the side.
  struct Parts {
    TransferBlocks* blocks = nullptr;
    KvReceiver* receiver = nullptr;
    LeaseKeeper* leases = nullptr;
    PeerOutbox* outbox = nullptr;
    DecodeHost* host = nullptr;
    const int64_t* now_us = nullptr;
  };
  DecodeSide(const Options& options, const Parts& parts)
      : options_(options), parts_(parts), grants_(options.num_blocks), pauses_(options.times) {}
  void set_parts(const Parts& parts) { parts_ = parts; }  // A copy has parts of its own.

  // ---- Prompts. The number of one is its attempt's order ----
  struct Prompt {
    AttemptKey attempt;
    PrefillPeer peer;
    int64_t deadline_us = 0;
    int32_t cached_tokens = 0;        // Found in this cache: they do not travel.
    int32_t num_prompt_logprobs = 0;  // How many come with the first token.
    bool at_any_price = false;        // Its router did not ask for what is faster.
  };
  void Submit(const Prompt& prompt, PrefillSubmit submit);
  // The prompt's attempt ends, or goes on without the transfer. Unknown: nothing.
  void End(JobId job);
  bool Has(JobId job) const { return prompts_.contains(job); }
  int32_t num_prompts() const { return static_cast<int32_t>(prompts_.size()); }
  // Prompts are not sent there for a while.
  bool Paused(const WorkerId& prefill) const { return pauses_.Paused(prefill, now_us()); }

  // ---- Prefill workers and transport ----
  void OnMessage(const WorkerId& prefill, const PrefillToDecode& message);
  void OnPrefillLost(const WorkerId& prefill, const absl::Status& why);
  void OnFrameReceived(const ReceivedFrame& frame);

  // ---- Blocks ----
  // The oldest sequence that lacks blocks here: no grant goes ahead of it.
  void set_blocked_order(uint64_t order) { blocked_order_ = order; }
  // Grants what is held, oldest first.
  void GrantHeld();
  // Younger sequences must not take what the oldest held grant waits for.
  uint64_t OldestHeldGrant() const;
  bool grants_wait() const { return grants_.num_waiting() > 0; }
  // Nothing runs, and nothing else that is under way is about to give blocks back. Then either
  // prompts that wait for a grant hold cached prefixes, which together can fill the pool; or what
  // is computed here for a peer holds the blocks, while that peer holds its own grant back for want
  // of what it computes for us, and neither lets go first. The youngest prompt that waits gives its
  // prefix up, or its place at the peer, and is computed here in its turn. True if there was one.
  bool YieldYoungest(bool peers_hold_blocks);

  // ---- Time ----
  void Expire();
  // What Expire does to a prompt whose reservation is due.
  void ExpireReservation(JobId job);
  int64_t next_us() const;

  void CountPins(std::map<BlockId, int32_t>* pins) const;
  // Appends bytes that are equal for equal states; of peers only what they owe.
  void AppendState(std::string* bytes) const;

 private:
  // A prompt while a prefill worker computes it.
  struct Remote {
    Prompt prompt;
    DecodeTransfer transfer;
    int32_t num_tokens = 0;
    size_t num_choices = 0;
    std::vector<BlockId> blocks;  // Granted, from first_block on.
    int32_t cached_tokens = 0;    // What the prefill worker's prefix cache had.
    int64_t started_us = 0;
    int64_t granted_us = 0;
    int64_t first_token_us = 0;
  };

  int64_t now_us() const { return *parts_.now_us; }
  // Null: `prefill` does not compute it, or does not any more.
  Remote* Find(JobId job, const WorkerId& prefill);
  void OnFirstToken(Remote* remote, const FirstToken& first);
  void OnRefused(Remote* remote, const PrefillRefused& refused);
  void GrantBlocks(JobId job);
  void AfterInput(JobId job);
  void Commit(JobId job);
  void GiveUp(JobId job);
  void EndAttempt(const Remote& remote, const absl::Status& why);
  void Pause(const WorkerId& peer, PauseReason reason, const std::string& detail);
  void JudgeLink(const Remote& remote);

  const Options options_;
  Parts parts_;
  std::map<JobId, Remote> prompts_;  // In order of arrival.
  GrantPolicy grants_;
  ExpiryQueue<JobId> holds_;  // Grants that are held: for how long at most if nothing moves.
  ExpiryQueue<JobId> expiries_;
  PeerPauses pauses_;
  std::map<WorkerId, int64_t> last_block_us_;  // From prefill workers; until their session is lost.
  std::multiset<BlockId> orphans_;  // Blocks without a reservation that a frame may still write to.
  uint64_t blocked_order_ = kNoOrder;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_DECODE_SIDE_H_
