// Session between a router and a worker: Submit and Cancel go down; StepBatches come up, for each
// engine step at most one of what it begins, before it, and one of what it gave.
//
// Every message is idempotent. Durations, never points in time, cross a process border.

#ifndef TANDEM_RUNTIME_PROTOCOL_ROUTER_MESSAGES_H_
#define TANDEM_RUNTIME_PROTOCOL_ROUTER_MESSAGES_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "runtime/kv_cache/kv_events.h"
#include "runtime/kv_cache/kv_geometry.h"
#include "runtime/protocol/ended_lives.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/peer_terms.h"
#include "runtime/protocol/request_spec.h"
#include "runtime/protocol/sampled_token.h"

namespace tandem {

// A prefill worker as the router names it to a decode worker, which dials.
struct PrefillPeer {
  WorkerId worker;
  std::string address;  // host:port of its gRPC listener.
  bool operator==(const PrefillPeer&) const = default;
};

// Router to worker: generate this, as one attempt.
struct Submit {
  AttemptId attempt;
  RequestSpec spec;
  std::string model;

  // Prompts that lack at least this many tokens (and a block) here are prefilled at
  // `prefill.address`; empty address: always here.
  PrefillPeer prefill;
  int32_t disaggregate_from_tokens = 0;
};

// Router to worker. Answered by AbortReply; leaves a tombstone if it overtook its Submit.
struct Cancel {
  AttemptId attempt;
  int64_t time_left_us = 0;  // The tombstone lives as long as the request could.
};

enum class AbortOutcome : uint8_t {
  kAccepted,    // Was running here; now ended.
  kNotFound,    // Had ended here, or is past its deadline.
  kTombstoned,  // Never seen; a late Submit will be refused.
};

using RouterCommand = std::variant<Submit, Cancel>;

// ---- Worker to router, inside a StepBatch ----

// Once per attempt, before or with its first token.
struct PromptEvent {
  AttemptId attempt;
  int32_t cached_tokens = 0;                  // Prompt tokens served from a prefix cache.
  bool by_prefill = false;                    // The attempt's prefill worker computed the prompt.
  std::vector<SampledToken> prompt_logprobs;  // One per prompt token but the first, if asked for.
};

struct TokenEvent {
  AttemptId attempt;
  int32_t choice = 0;
  int32_t position = 0;  // In prompt + generated; strictly increasing by one.
  SampledToken token;
  FinishReason finish = FinishReason::kNone;  // Not kNone: the choice's terminal event.
};

// Not admitted (ResourceExhausted: queue full; Aborted: another runs alone; draining, prompt can
// never fit, tombstoned): not an attempt.
struct RefusedEvent {
  AttemptId attempt;
  absl::Status status;
  bool by_prefill = false;     // The prefill worker of the attempt says so, not this worker.
  int64_t retry_after_us = 0;  // When there may be room; 0: nobody knows.
};

// Terminal for every choice that had no finish: Unavailable (peer or transfer lost), Cancelled,
// DeadlineExceeded, Internal (its own run failed), Aborted (the step that it was in failed whole).
struct EndedEvent {
  AttemptId attempt;
  absl::Status status;
  bool by_prefill = false;  // The prefill worker of the attempt says so, not this worker.
};

struct AbortReply {
  AttemptId attempt;
  AbortOutcome outcome = AbortOutcome::kNotFound;
};

using RouterEvent = std::variant<PromptEvent, TokenEvent, RefusedEvent, EndedEvent, AbortReply>;

// Positions that a step computes of an attempt without a token of its own: a chunk of its prompt,
// or of what a resumed one computes again. Said before the step begins: should it be the last thing
// that the process does, the router knows where that was. A prefill worker says it to every router,
// since it knows none of them.
struct ChunkBegun {
  AttemptId attempt;
  int32_t first_position = 0;  // All positions before it are computed.
  int32_t end_position = 0;    // Past the last.
  bool operator==(const ChunkBegun&) const = default;
};

struct StepBatch {
  uint64_t worker_incarnation = 0;
  bool draining = false;            // Why attempts end; heartbeats say so too, but later.
  std::vector<RouterEvent> events;  // In order of occurrence.
  std::vector<ChunkBegun> chunks;   // Begun after all of `events`.
};

// ---- Watch: worker to router ----

enum class WorkerRole : uint8_t { kPrefill, kDecode, kHybrid };
inline constexpr size_t kNumWorkerRoles = 3;
inline std::string_view WorkerRoleName(WorkerRole role) {
  constexpr std::string_view kNames[] = {"prefill", "decode", "hybrid"};
  return kNames[static_cast<size_t>(role)];
}

struct WorkerLoad {
  BlockCounts blocks;
  int32_t running_sequences = 0;
  int32_t waiting_sequences = 0;
  int64_t waiting_prompt_tokens = 0;  // Not yet computed.
  bool has_work = false;
  int64_t since_progress_us = 0;  // Since the engine's last stamp.
};

// First message of a Watch, and the base of the events that follow it.
struct WorkerRegistration {
  WorkerId worker;
  WorkerRole role = WorkerRole::kHybrid;
  std::string model;
  PeerTerms terms;  // With equal numerics_id they also continue each other's streams.
  KvGeometry kv;
  int32_t max_model_tokens = 0;  // Longest prompt + output.
  int32_t max_sequences = 0;
  int64_t sequence_blocks = 0;  // The most that a sequence holds at a time; 0: one for all tokens.
  bool supervised = false;      // The next life of this name will tell how this one ended.
  std::vector<EndedLife>
      ended_lives;  // Earlier ones of this name, newest last; at most kMaxEndedLives.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_ROUTER_MESSAGES_H_
