#include "runtime/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

absl::Status Check(const EngineOptions& o) {
  if (o.kv.block_tokens <= 0 || o.kv.block_tokens % kHashTokens != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("blocks of %d tokens, not a multiple of %d",
                                                      o.kv.block_tokens, kHashTokens));
  }
  if (o.kv.num_blocks <= 0 || o.kv.block_bytes <= 0 || o.max_waiting_attempts <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%d blocks of %d bytes, %d waiting attempts",
                                                      o.kv.num_blocks, o.kv.block_bytes,
                                                      o.max_waiting_attempts));
  }
  if (o.window < 0) {
    return absl::InvalidArgumentError(absl::StrFormat("a window of %d tokens", o.window));
  }
  if (o.max_sequences <= 0 || o.max_batched_tokens <= o.max_sequences) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a step of %d tokens leaves none for prompts beside %d decodes",
                        o.max_batched_tokens, o.max_sequences));
  }
  if (!(o.max_quarantined_share >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%g of the pool in quarantine", o.max_quarantined_share));
  }
  if (o.max_model_tokens < 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a context of %d tokens holds no prompt and token", o.max_model_tokens));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       Executor* executor, Outbox* outbox,
                                                       PeerOutbox* peers, KvReceiver* receiver,
                                                       LeaseKeeper* leases, TokenMasker* masker) {
  TANDEM_RETURN_IF_ERROR(Check(options));
  return std::unique_ptr<Engine>(
      new Engine(options, executor, outbox, peers, receiver, leases, masker));
}

Engine::Engine(const EngineOptions& options, Executor* executor, Outbox* outbox, PeerOutbox* peers,
               KvReceiver* receiver, LeaseKeeper* leases, TokenMasker* masker)
    : options_(options),
      executor_(executor),
      overlaps_steps_(executor->overlaps_steps()),
      lookahead_tokens_((executor->max_drawn() - 1) * (overlaps_steps_ ? kMaxStepsBegun : 1)),
      outbox_(outbox),
      masker_(masker),
      blocks_(options.kv.num_blocks,
              {.tokens = options.window, .block_tokens = options.kv.block_tokens},
              options.prefix_caching, executor),
      scheduler_({.max_sequences = options.max_sequences,
                  .max_batched_tokens = options.max_batched_tokens,
                  .block_tokens = options.kv.block_tokens},
                 &blocks_),
      decode_({.num_blocks = options.kv.num_blocks, .times = options.times}, {.blocks = &blocks_,
                                                                              .receiver = receiver,
                                                                              .leases = leases,
                                                                              .outbox = peers,
                                                                              .host = this,
                                                                              .now_us = &now_us_}),
      prefill_({.block_bytes = options.kv.block_bytes,
                .lease_us = options.times.lease_us,
                .max_frames_ahead = options.max_frames_ahead},
               {.blocks = &blocks_,
                .leases = leases,
                .outbox = peers,
                .host = this,
                .now_us = &now_us_}) {}

Engine::~Engine() = default;

void Engine::AdvanceTo(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  stalled_ = false;
  while (!graveyard_.empty() && graveyard_.front().step <= finished_) graveyard_.pop_front();
}

void Engine::OnDecodeMessage(SessionId decode, const DecodeToPrefill& message, int64_t now_us,
                             CommandCharge charge) {
  AdvanceTo(now_us);
  if (const auto* submit = std::get_if<PrefillSubmit>(&message)) {
    OnPrefillSubmit(decode, *submit, std::move(charge));
  } else {
    prefill_.OnMessage(decode, message);
  }
}

void Engine::OnDecodeLost(SessionId decode, int64_t now_us) {
  AdvanceTo(now_us);
  prefill_.OnDecodeLost(decode);
}

void Engine::OnFrameSent(uint64_t send_id, bool ok, int64_t now_us) {
  AdvanceTo(now_us);
  prefill_.OnFrameSent(send_id, ok);
}

void Engine::OnPrefillMessage(const WorkerId& prefill, const PrefillToDecode& message,
                              int64_t now_us) {
  AdvanceTo(now_us);
  decode_.OnMessage(prefill, message);
}

void Engine::OnPrefillLost(const WorkerId& prefill, const absl::Status& why, int64_t now_us) {
  AdvanceTo(now_us);
  decode_.OnPrefillLost(prefill, why);
}

void Engine::OnFrameReceived(const ReceivedFrame& frame, int64_t now_us) {
  AdvanceTo(now_us);
  decode_.OnFrameReceived(frame);
}

bool Engine::drained() const {
  return draining_ && attempts_.empty() && prefill_.empty() && steps_begun() == 0 &&
         blocks_.Counts().quarantined == 0;
}

WorkerLoad Engine::Load() const {
  return {.blocks = blocks_.Counts(),
          .running_sequences = scheduler_.num_running(),
          .waiting_sequences = scheduler_.num_waiting() + decode_.num_prompts(),
          .waiting_prompt_tokens = scheduler_.waiting_tokens(),
          .has_work = (!scheduler_.idle() && !stalled_) || steps_begun() > 0};
}

absl::Status Engine::Audit() const {
  BlockOwners owners;
  int32_t num_remote = 0;
  int32_t num_alone = 0;
  const auto hold = [&](const EngineSequence* sequence) {
    if (sequence == nullptr || sequence->ended) return;
    for (const BlockId block : sequence->block_table) {
      if (block != kNoBlock) ++owners.references[block];
    }
    num_alone += sequence->runs_alone && sequence->state != SequenceState::kIdle;
  };
  for (const auto& [key, attempt] : attempts_) {
    for (const auto& sequence : attempt->sequences) hold(sequence.get());
    num_remote += decode_.Has(attempt->order);
  }
  for (const auto& [key, job] : jobs_) hold(job->sequence.get());
  decode_.CountPins(&owners.pins);
  prefill_.CountPins(&owners.pins);
  if (num_remote != decode_.num_prompts()) {
    return absl::InternalError(absl::StrFormat("%d prompts are elsewhere, %d are known", num_remote,
                                               decode_.num_prompts()));
  }
  if (num_alone != scheduler_.num_alone()) {
    return absl::InternalError(absl::StrFormat("%d sequences must run alone, the scheduler has %d",
                                               num_alone, scheduler_.num_alone()));
  }
  TANDEM_RETURN_IF_ERROR(prefill_.Audit());
  return blocks_.Audit(owners);
}

}  // namespace tandem
