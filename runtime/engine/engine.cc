#include "runtime/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/math.h"
#include "runtime/engine/engine_impl.h"

namespace tandem {
namespace {

// Aborts that overtook their submit; more are possible only while a router misbehaves.
constexpr int32_t kMaxTombstones = 1 << 16;

absl::Status Check(const EngineOptions& o) {
  if (o.block_tokens <= 0 || o.block_tokens % kHashTokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("blocks of %d tokens, not a multiple of %d", o.block_tokens, kHashTokens));
  }
  if (o.num_blocks <= 0 || o.block_bytes <= 0 || o.max_waiting_attempts <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%d blocks of %d bytes, %d waiting attempts",
                                                      o.num_blocks, o.block_bytes,
                                                      o.max_waiting_attempts));
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
                                                       KvReceiver* receiver, LeaseKeeper* leases) {
  TANDEM_RETURN_IF_ERROR(Check(options));
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<Impl>(options, executor, outbox, receiver, leases)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Engine::Impl::Impl(const EngineOptions& options, Executor* executor, Outbox* outbox,
                   KvReceiver* receiver, LeaseKeeper* leases)
    : options_(options),
      executor_(executor),
      outbox_(outbox),
      receiver_(receiver),
      leases_(leases),
      memory_(options.num_blocks, options.block_tokens, options.prefix_caching, executor),
      scheduler_({.max_sequences = options.max_sequences,
                  .max_batched_tokens = options.max_batched_tokens,
                  .block_tokens = options.block_tokens},
                 &memory_),
      tombstones_(kMaxTombstones),
      grants_(options.num_blocks),
      pauses_(options.times),
      job_tombstones_(kMaxTombstones) {}

void Engine::Impl::Note(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  stalled_ = false;
  graveyard_.clear();
}

// Points in time saturate: a peer may ask for any duration.
int64_t Engine::Impl::After(int64_t now_us, int64_t duration_us) {
  return CheckedAdd(now_us, duration_us).value_or(kNever - 1);
}

bool Engine::Impl::drained() const {
  return draining_ && attempts_.empty() && jobs_.empty() && memory_.Counts().quarantined == 0;
}

WorkerLoad Engine::Impl::Load() const {
  return {.blocks = memory_.Counts(),
          .running_sequences = scheduler_.num_running(),
          .waiting_sequences = scheduler_.num_waiting() + static_cast<int32_t>(remote_.size()),
          .waiting_prompt_tokens = scheduler_.waiting_tokens(),
          .has_work = !scheduler_.idle() && !stalled_};
}

absl::Status Engine::Impl::Audit() const {
  BlockOwners owners;
  size_t num_remote = 0;
  int32_t num_alone = 0;
  const auto hold = [&](const EngineSequence* sequence) {
    if (sequence == nullptr || sequence->ended) return;
    for (const BlockId block : sequence->block_table) ++owners.references[block];
    num_alone += sequence->alone && sequence->state != SequenceState::kIdle;
  };
  for (const auto& [key, attempt] : attempts_) {
    for (const auto& sequence : attempt->sequences) hold(sequence.get());
    if (attempt->remote == nullptr) continue;
    num_remote += remote_.contains(attempt->remote->job);
    const DecodeTransfer& transfer = attempt->remote->transfer;
    if (transfer.reservation().generation == 0) continue;
    const std::vector<BlockId>& table = attempt->sequences.front()->block_table;
    for (int32_t i = transfer.first_block(); i < transfer.num_blocks(); ++i) {
      if (!transfer.verified(i)) ++owners.pins[table[static_cast<size_t>(i)]];
    }
  }
  for (const auto& [key, job] : jobs_) hold(job->sequence.get());
  for (const auto& [id, send] : sends_) ++owners.pins[send.block];
  for (const BlockId block : orphans_) ++owners.pins[block];
  if (num_remote != remote_.size()) {
    return absl::InternalError(
        absl::StrFormat("%d prompts are elsewhere, %d are known", num_remote, remote_.size()));
  }
  if (num_alone != scheduler_.num_alone()) {
    return absl::InternalError(absl::StrFormat("%d sequences must run alone, the scheduler has %d",
                                               num_alone, scheduler_.num_alone()));
  }
  return memory_.Audit(owners);
}

void Engine::OnSubmit(SessionId router, const Submit& submit, int64_t now_us, PromptCharge charge) {
  impl_->OnSubmit(router, submit, now_us, std::move(charge));
}
void Engine::OnCancel(SessionId router, const Cancel& cancel, int64_t now_us) {
  impl_->OnCancel(router, cancel, now_us);
}
void Engine::OnRouterLost(SessionId router, int64_t now_us) { impl_->OnRouterLost(router, now_us); }
void Engine::OnDecodeMessage(SessionId decode, const DecodeToPrefill& message, int64_t now_us,
                             PromptCharge charge) {
  impl_->OnDecodeMessage(decode, message, now_us, std::move(charge));
}
void Engine::OnDecodeLost(SessionId decode, int64_t now_us) { impl_->OnDecodeLost(decode, now_us); }
void Engine::OnFrameSent(uint64_t send_id, bool ok, int64_t now_us) {
  impl_->OnFrameSent(send_id, ok, now_us);
}
void Engine::OnPrefillMessage(const WorkerId& prefill, const PrefillToDecode& message,
                              int64_t now_us) {
  impl_->OnPrefillMessage(prefill, message, now_us);
}
void Engine::OnPrefillLost(const WorkerId& prefill, const absl::Status& why, int64_t now_us) {
  impl_->OnPrefillLost(prefill, why, now_us);
}
void Engine::OnFrameReceived(const ReceivedFrame& frame, int64_t now_us) {
  impl_->OnFrameReceived(frame, now_us);
}
void Engine::Drain(int64_t now_us) { impl_->Drain(now_us); }
bool Engine::drained() const { return impl_->drained(); }
Engine::StepResult Engine::Step(int64_t now_us) { return impl_->Step(now_us); }
bool Engine::steps_keep_failing() const { return impl_->steps_keep_failing(); }
bool Engine::quarantine_is_stuck() const { return impl_->quarantine_is_stuck(); }
WorkerLoad Engine::Load() const { return impl_->Load(); }
KvEvents Engine::TakeKvEvents() { return impl_->TakeKvEvents(); }
KvEvents Engine::SnapshotKvEvents() const { return impl_->SnapshotKvEvents(); }
absl::Status Engine::Audit() const { return impl_->Audit(); }
std::vector<NamedBlock> Engine::CachedBlocks() const { return impl_->CachedBlocks(); }

}  // namespace tandem
