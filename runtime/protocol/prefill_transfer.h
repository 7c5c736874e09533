// The source's side of one attempt's KV transfer: which blocks may travel, and until when they
// must be kept.
//
//   queued ──Start──▶ started ──OnGrant──▶ granted ──▶ ended
//
// Blocks become ready while the prompt is computed and travel once granted, lowest ordinal first.
// A sent block can be asked for again (Resend) until the transfer ends: by Committed, a cancel, a
// lost peer or an expired lease. When it ends the engine releases the attempt's blocks; those whose
// frame is in flight stay pinned in the pool until OnFrameSent, which is all that keeps them.
//
// Pure: no pool, no clock. Every input may come twice or late.

#ifndef TANDEM_RUNTIME_PROTOCOL_PREFILL_TRANSFER_H_
#define TANDEM_RUNTIME_PROTOCOL_PREFILL_TRANSFER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/peer_messages.h"

namespace tandem {

class PrefillTransfer {
 public:
  enum class State : uint8_t { kQueued, kStarted, kGranted, kEnded };

  struct Options {
    JobId job = 0;
    int32_t first_block = 0;  // Promised are [first_block, num_blocks); may be none.
    int32_t num_blocks = 0;
    int64_t block_bytes = 0;
    int64_t lease_us = 0;
  };
  PrefillTransfer(const Options& options, int64_t now_us);

  // ---- Engine ----
  void Start();  // The prompt is scheduled; the engine sends Start.
  // The block's content is final. Ordinals outside the promised range are ignored.
  void OnBlockReady(int32_t ordinal, uint32_t payload_crc32c);
  void OnFirstTokenSent();

  // ---- Peer and transport ----
  void OnGrant(const Grant& grant);
  void OnResend(const Resend& resend);
  // Handled before the leases are looked at: a step that outlasts one ends nothing.
  void OnRenew(int64_t now_us);
  void OnFrameSent(int32_t ordinal, bool ok);  // Not ok: ends the transfer Unavailable.
  // Committed: Ok. PrefillCancel: Cancelled. Peer lost: Unavailable. The first reason stays.
  void End(absl::Status why);
  // Ends the transfer Unavailable if its lease ran out.
  void Expire(int64_t now_us);

  // ---- What to do next ----
  // The frame to hand to the transport: pin block `ordinal` of the prompt, then SendFrame. The
  // ordinal is in flight until OnFrameSent. Call until it gives nothing.
  std::optional<FrameHeader> TakeFrame();
  // Once: after the first token was sent and every promised block was handed to the transport.
  std::optional<Done> TakeDone();

  // TakeFrame would give one.
  bool has_frame() const { return state_ == State::kGranted && num_ready_ > 0; }
  // Every block has left: nothing more will travel unless it is asked for again.
  bool all_sent() const { return num_sent_ == static_cast<int32_t>(ordinals_.size()); }
  bool done_taken() const { return done_taken_; }

  State state() const { return state_; }
  bool ended() const { return state_ == State::kEnded; }
  const absl::Status& outcome() const { return outcome_; }  // Once ended.
  int32_t first_block() const { return options_.first_block; }
  int32_t num_blocks() const { return options_.num_blocks; }
  int64_t lease_until_us() const { return lease_until_us_; }

  // Appends bytes that are equal for equal states.
  void AppendState(std::string* bytes) const;

 private:
  enum class Block : uint8_t { kComputing, kReady, kInFlight, kSent };
  struct Ordinal {
    Block block = Block::kComputing;
    bool handed_over = false;  // To the transport, once at least.
    bool again = false;        // Asked for again before its completion was known.
    uint32_t payload_crc32c = 0;
  };
  Ordinal* Find(int32_t ordinal);  // Null outside the promised range.
  void SetReady(Ordinal* ordinal);

  Options options_;
  State state_ = State::kQueued;
  std::vector<Ordinal> ordinals_;  // The i-th is first_block + i.
  Reservation reservation_;
  int64_t lease_until_us_ = 0;
  size_t search_from_ = 0;  // None of ordinals_ before it is ready.
  int32_t num_ready_ = 0;
  int32_t num_sent_ = 0;
  int32_t num_handed_over_ = 0;  // Ordinals, resends apart.
  bool first_token_sent_ = false;
  bool done_taken_ = false;
  absl::Status outcome_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_PREFILL_TRANSFER_H_
