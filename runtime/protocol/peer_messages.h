// Session between a decode worker (which dials) and a prefill worker, and the header of a KV frame.
//
//   decode → prefill: PrefillSubmit, Grant, Resend, Committed, PrefillCancel, Renew
//   prefill → decode: Start, PrefillRefused, Progress, FirstToken, Done, Renew
//
// The order of a good transfer: Submit, Start, Grant, frames ‖ Progress, FirstToken, Done,
// Committed. Every message is idempotent and keyed by the decode worker's number of the prompt,
// which means something on its session alone.

#ifndef TANDEM_RUNTIME_PROTOCOL_PEER_MESSAGES_H_
#define TANDEM_RUNTIME_PROTOCOL_PEER_MESSAGES_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/kv_shard.h"
#include "runtime/protocol/request_spec.h"
#include "runtime/protocol/sampled_token.h"

namespace tandem {

// ---- Decode to prefill ----

// A promise, not a reservation: the decode worker will grant blocks [first_block, num_blocks) once
// the prompt starts.
struct PrefillSubmit {
  JobId job = 0;
  AttemptId attempt;  // The router's name for it: the router is told what is begun of it.
  RequestSpec spec;
  int32_t first_block = 0;  // Ordinal of the first block the decode side lacks.
  int32_t num_blocks = 0;   // Blocks of the whole prompt, partial tail included.
};

// All but the spec, which has a check of its own: what can be said without knowing how many tokens
// a block has. InvalidArgument names field and numbers.
absl::Status ValidateBlocks(const PrefillSubmit& submit);

// Names one set of granted blocks at the decode worker. An index that is used again gets the next
// generation, so that a late frame matches nothing.
struct Reservation {
  uint32_t index = 0;
  uint32_t generation = 0;  // Never 0 once granted.
  auto operator<=>(const Reservation&) const = default;
};

// All the blocks promised, at once. Frames may be sent from now on, in any order, each once.
struct Grant {
  JobId job = 0;
  Reservation reservation;
};

// Block `ordinal` failed its checksum: send it again.
struct Resend {
  JobId job = 0;
  int32_t ordinal = 0;
};

// All blocks verified: the source lease may end.
struct Committed {
  JobId job = 0;
};

struct PrefillCancel {
  JobId job = 0;
  int64_t time_left_us = 0;
};

// Extends the leases of these jobs at the prefill side, or their reservations at the decode
// side. Batched, from a thread that no forward pass blocks.
struct Renew {
  std::vector<JobId> jobs;
};

using DecodeToPrefill = std::variant<PrefillSubmit, Grant, Resend, Committed, PrefillCancel, Renew>;

// ---- Prefill to decode ----

struct Start {
  JobId job = 0;
  int32_t cached_tokens = 0;  // Prefix the prefill worker did not have to compute.
};

// Ends the job at the prefill side, at any time before Done. ResourceExhausted (queue full),
// Unavailable (draining, lease or frame lost), FailedPrecondition (never fits there), Cancelled
// (before it arrived), DeadlineExceeded, InvalidArgument, Internal (the run failed), Aborted (the
// whole step did, or its blocks cannot be read).
struct PrefillRefused {
  JobId job = 0;
  absl::Status status;
  int64_t retry_after_us = 0;  // As in RefusedEvent.
};

// Another chunk of the prompt is computed: proof of life.
struct Progress {
  JobId job = 0;
};

// The first token of every choice, at the position after token_ids. Sent at once, before the last
// blocks have travelled.
struct FirstToken {
  JobId job = 0;
  std::vector<SampledToken> tokens;  // Parallel to the choices of the spec.
  std::vector<SampledToken> prompt_logprobs;
};

// Every block has been handed to the transport, which may take its time: until the last one has
// left, Renew goes on. `num_frames` frames were sent, resends apart.
struct Done {
  JobId job = 0;
  int32_t num_frames = 0;
};

using PrefillToDecode = std::variant<Start, PrefillRefused, Progress, FirstToken, Done, Renew>;

// ---- KV data ----

// Ahead of every block on the wire: little-endian, packed in this order by the transports. It names
// a reservation, never an address: the receiver decides where the bytes go.
struct FrameHeader {
  Reservation reservation;
  uint32_t ordinal = 0;       // Block of the prompt.
  uint32_t length_bytes = 0;  // The payload's: a whole block of the shard.
  KvShard shard;              // The sender's pool holds it; so does the receiver's.
  uint32_t crc32c = 0;        // Over the payload, then the five fields above.
  bool operator==(const FrameHeader&) const = default;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_PEER_MESSAGES_H_
