// The sink's side of one attempt's KV transfer: from the promise to the moment the sequence may
// join the batch.
//
//   promised ──OnStart──▶ started ──OnGranted──▶ granted ──▶ complete
//        └───────────────────┴──────────────────────┴──────▶ failed
//
// Complete means: every promised ordinal verified, Done arrived and the first token known, in any
// order. An empty promise needs no grant. The engine then sends Committed and closes the
// reservation; after a failure it sends PrefillCancel and closes it too. Frames reach this class
// only through KvReceiver, which has fenced them.
//
// How the engine counts pins: every granted block is pinned when its reservation opens and unpinned
// when OnFrame first finds it verified. When the reservation closes, the blocks that Close names
// keep one pin until their kOrphaned frame; all others lose theirs.
//
// Pure: no pool, no clock. Every input may come twice, late or after the end.

#ifndef TANDEM_RUNTIME_PROTOCOL_DECODE_TRANSFER_H_
#define TANDEM_RUNTIME_PROTOCOL_DECODE_TRANSFER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/kv_receiver.h"
#include "runtime/protocol/peer_messages.h"

namespace tandem {

// A corrupt block is asked for again this often; then the transfer fails with DataLoss.
inline constexpr int kMaxResends = 2;

class DecodeTransfer {
 public:
  enum class State : uint8_t { kPromised, kStarted, kGranted, kComplete, kFailed };

  struct Options {
    JobId job = 0;
    int32_t first_block = 0;  // Promised are [first_block, num_blocks); may be none.
    int32_t num_blocks = 0;
    int64_t timeout_us = 0;  // A granted transfer without a sign of life for so long fails.
  };
  explicit DecodeTransfer(const Options& options);

  // ---- From the prefill worker ----
  // True once: a grant is wanted now (never for an empty promise).
  bool OnStart();
  void OnAlive(int64_t now_us);
  // From a timer of its: a sign of life, unless all was sent and no block has come over its link
  // since `block_us`, nor since Done, for `stalled_us`. Then only blocks count.
  void OnRenew(int64_t block_us, int64_t stalled_us, int64_t now_us);
  // True once: the tokens are new and go to the router.
  bool OnFirstToken(int64_t now_us);
  void OnDone(const Done& done, int64_t now_us);  // Internal if it counts other frames than we.
  void OnRefused(absl::Status why) { Fail(std::move(why)); }

  // ---- Engine and transport ----
  // The engine has allocated, pinned and opened; gives the message for the peer.
  Grant OnGranted(Reservation reservation, int64_t now_us);
  // A frame of this attempt, not kOrphaned, has come. Gives the message that asks for a corrupt
  // block again.
  std::optional<Resend> OnFrame(const ReceivedFrame& frame, int64_t now_us);
  void OnPeerLost(absl::Status why) { Fail(std::move(why)); }
  // Fails with Unavailable if granted and silent for timeout_us.
  void Expire(int64_t now_us);

  State state() const { return state_; }
  bool over() const { return state_ == State::kComplete || state_ == State::kFailed; }
  const absl::Status& failure() const { return failure_; }  // In kFailed.
  int32_t first_block() const { return options_.first_block; }
  int32_t num_blocks() const { return options_.num_blocks; }
  bool verified(int32_t ordinal) const;  // The ordinal is a promised one.
  int32_t num_verified() const { return num_verified_; }
  bool first_token_known() const { return first_token_known_; }
  Reservation reservation() const { return reservation_; }  // Generation 0: none yet.
  // When Expire may next change something; INT64_MAX if never.
  int64_t expires_at_us() const;

  // Appends bytes that are equal for equal states.
  void AppendState(std::string* bytes) const;

 private:
  void Fail(absl::Status why);
  void CompleteIfAllArrived();

  Options options_;
  State state_ = State::kPromised;
  Reservation reservation_;
  std::vector<uint8_t> verified_;  // By ordinal - first_block.
  std::vector<uint8_t> resends_;
  int32_t num_verified_ = 0;
  int64_t last_heard_us_ = 0;
  int64_t done_us_ = 0;
  bool first_token_known_ = false;
  bool done_ = false;
  absl::Status failure_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_DECODE_TRANSFER_H_
