// Prompts computed for decode workers: their blocks are sent as they finish, and kept until the
// receiver has committed, cancelled, gone or let its lease run out.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/guard.h"
#include "runtime/base/math.h"
#include "runtime/engine/engine_impl.h"

namespace tandem {

void Engine::Impl::OnDecodeMessage(SessionId decode, const DecodeToPrefill& message, int64_t now_us,
                                   PromptCharge charge) {
  Note(now_us);
  if (const auto* submit = std::get_if<PrefillSubmit>(&message)) {
    OnPrefillSubmit(decode, *submit, std::move(charge));
  } else if (const auto* cancel = std::get_if<PrefillCancel>(&message)) {
    OnPrefillCancel(decode, *cancel);
  } else if (const auto* renew = std::get_if<Renew>(&message)) {
    for (const JobId id : renew->jobs) {
      PrefillJob* const job = FindJob(decode, id);
      if (job == nullptr) continue;
      job->transfer.OnRenew(now_us_);
      job_leases_.Set(job->key, job->transfer.lease_until_us());
    }
  } else if (const auto* grant = std::get_if<Grant>(&message)) {
    if (PrefillJob* const job = FindJob(decode, grant->job)) {
      job->transfer.OnGrant(*grant);
      Pump(job);
    }
  } else if (const auto* resend = std::get_if<Resend>(&message)) {
    if (PrefillJob* const job = FindJob(decode, resend->job)) {
      job->transfer.OnResend(*resend);
      Pump(job);
    }
  } else if (const auto* committed = std::get_if<Committed>(&message)) {
    if (PrefillJob* const job = FindJob(decode, committed->job)) {
      job->transfer.End(absl::OkStatus());
      Pump(job);
    }
  }
}

void Engine::Impl::OnPrefillSubmit(SessionId decode, const PrefillSubmit& submit,
                                   PromptCharge charge) {
  const JobKey key{.decode = decode, .job = submit.job};
  if (jobs_.contains(key) || Ended(key)) return;
  if (absl::Status status = CheckPrefillSubmit(decode, submit); !status.ok()) {
    RememberEnded(key, After(now_us_, submit.spec.time_left_us));
    const int64_t retry_after_us = RetryAfterUs(status);
    outbox_->ToDecode(decode, PrefillRefused{.job = submit.job,
                                             .status = std::move(status),
                                             .retry_after_us = retry_after_us});
    return;
  }
  auto job = std::make_unique<PrefillJob>(PrefillJob{
      .key = key,
      .attempt = submit.attempt,
      .serial = ++num_arrivals_,
      .spec = submit.spec,
      .sequence = std::make_unique<EngineSequence>(),
      .transfer = PrefillTransfer({.job = submit.job,
                                   .first_block = submit.first_block,
                                   .num_blocks = submit.num_blocks,
                                   .block_bytes = options_.block_bytes,
                                   .lease_us = options_.times.lease_us},
                                  now_us_),
      .num_ready_blocks = submit.first_block,
      .charge = std::move(charge),
  });
  EngineSequence* const sequence = job->sequence.get();
  sequence->job = job.get();
  sequence->arrived_us = now_us_;
  sequence->order = job->serial;
  SetUpPrompt(&job->spec, sequence);
  sequence->whole = true;
  sequence->turns = &job->turns;
  job_leases_.Set(key, job->transfer.lease_until_us());
  job_deadlines_.Set(key, After(now_us_, submit.spec.time_left_us));
  jobs_.emplace(key, std::move(job));
  scheduler_.Enqueue(sequence);
}

absl::Status Engine::Impl::CheckPrefillSubmit(SessionId decode, const PrefillSubmit& submit) const {
  if (!job_tombstones_.Admits({.decode = decode, .job = submit.job})) {
    return absl::CancelledError("cancelled before it arrived");
  }
  if (submit.spec.time_left_us <= 0) {
    return absl::DeadlineExceededError(
        absl::StrFormat("submitted with %d us left", submit.spec.time_left_us));
  }
  if (draining_) return absl::UnavailableError("this prefill worker is draining");
  TANDEM_RETURN_IF_ERROR(Validate(submit.spec, {.vocab_size = options_.vocab_size}));
  const auto num_tokens = static_cast<int64_t>(submit.spec.token_ids.size());
  const int64_t num_blocks = CeilDiv<int64_t>(num_tokens, options_.block_tokens);
  if (submit.num_blocks != num_blocks || submit.first_block < 0 ||
      submit.first_block > submit.num_blocks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("blocks [%d, %d) promised for %d tokens in blocks of %d",
                        submit.first_block, submit.num_blocks, num_tokens, options_.block_tokens));
  }
  if (num_tokens >= options_.max_model_tokens || num_blocks > options_.num_blocks) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "a prompt of %d tokens in %d blocks, this prefill worker has a context of %d and %d blocks",
        num_tokens, num_blocks, options_.max_model_tokens, options_.num_blocks));
  }
  return CheckQueue();
}

void Engine::Impl::OnPrefillCancel(SessionId decode, const PrefillCancel& cancel) {
  if (PrefillJob* const job = FindJob(decode, cancel.job)) {
    job->transfer.End(absl::CancelledError("cancelled by the decode worker"));
    Pump(job);
  } else if (const JobKey key{.decode = decode, .job = cancel.job}; !Ended(key)) {
    job_tombstones_.Add(key, After(now_us_, cancel.time_left_us), now_us_);
  }
}

void Engine::Impl::OnDecodeLost(SessionId decode, int64_t now_us) {
  Note(now_us);
  for (auto next = jobs_.lower_bound({.decode = decode}); next != jobs_.end();) {
    PrefillJob* const job = (next++)->second.get();  // ForgetJob erases its entry.
    if (job->key.decode != decode) break;
    ForgetJob(job);
  }
}

void Engine::Impl::OnFrameSent(uint64_t send_id, bool ok, int64_t now_us) {
  Note(now_us);
  const auto found = sends_.find(send_id);
  if (found == sends_.end()) return;
  const FrameSend send = found->second;
  sends_.erase(found);
  memory_.Unpin(send.block);
  const auto of = sends_of_.find(send.job);
  of->second.erase(send_id);
  if (of->second.empty()) sends_of_.erase(of);
  --links_.at(send.job.decode).num_sending;
  const auto job = jobs_.find(send.job);
  if (job != jobs_.end() && job->second->serial == send.serial) {
    job->second->transfer.OnFrameSent(send.ordinal, ok);
    Pump(job->second.get());
  }
  PumpHeld(send.job.decode);
}

// Some frame of the link has gone.
void Engine::Impl::PumpHeld(SessionId decode) {
  const auto link = links_.find(decode);
  const DecodeLink& of = link->second;
  while (!of.held.empty() && of.num_sending < options_.max_frames_ahead) {
    Pump(of.held.begin()->second);
  }
  if (of.held.empty() && of.num_sending == 0) links_.erase(link);
}

void Engine::Impl::StartAdmitted(const StepPlan& plan) {
  for (Sequence* base : plan.admitted) {
    auto* const sequence = static_cast<EngineSequence*>(base);
    if (sequence->attached_tokens < 0) sequence->attached_tokens = sequence->num_computed;
    PrefillJob* const job = sequence->job;
    if (job == nullptr) {
      sequence->attempt->charge.reset();
      continue;
    }
    job->transfer.Start();
    leases_->AddReservation(job->key.decode, job->key.job);
    outbox_->ToDecode(job->key.decode,
                      Start{.job = job->key.job, .cached_tokens = sequence->attached_tokens});
    OfferBlocks(job);
  }
}

void Engine::Impl::PublishToDecode(EngineSequence* sequence, RunOutput* output) {
  PrefillJob* const job = sequence->job;
  if (output->drawn.empty()) {
    outbox_->ToDecode(job->key.decode, Progress{.job = job->key.job});
    OfferBlocks(job);
    Pump(job);
    return;
  }
  outbox_->OnPromptComputed(sequence->arrived_us, sequence->begun_us);
  const auto position = static_cast<int32_t>(sequence->token_ids.size());
  const bool goes_on =
      std::any_of(output->drawn.begin(), output->drawn.end(), [&](const SampledToken& token) {
        return RequestedFinish(job->spec, position, token.token) == FinishReason::kNone;
      });
  scheduler_.Remove(sequence);  // Its blocks stay with it.
  outbox_->ToDecode(job->key.decode,
                    FirstToken{.job = job->key.job,
                               .tokens = std::move(output->drawn),
                               .prompt_logprobs = std::move(job->prompt_logprobs)});
  job->transfer.OnFirstTokenSent();
  if (goes_on) {
    OfferBlocks(job);
  } else {
    job->transfer.End(absl::OkStatus());  // The decode worker needs nothing more.
  }
  Pump(job);
}

// Tells the transfer which blocks will not change any more.
void Engine::Impl::OfferBlocks(PrefillJob* job) {
  const EngineSequence& sequence = *job->sequence;
  const int32_t num_ready = sequence.remaining() == 0
                                ? job->transfer.num_blocks()
                                : sequence.num_computed / options_.block_tokens;
  for (; job->num_ready_blocks < num_ready; ++job->num_ready_blocks) {
    const BlockId block = sequence.block_table[static_cast<size_t>(job->num_ready_blocks)];
    job->transfer.OnBlockReady(job->num_ready_blocks, memory_.Checksum(block));
  }
}

// Does what the transfer's last input has made possible, or its end necessary.
void Engine::Impl::Pump(PrefillJob* job) {
  while (job->transfer.has_frame()) {
    DecodeLink& link = links_[job->key.decode];
    if (link.num_sending >= options_.max_frames_ahead) {
      link.held.emplace(job->serial, job);
      break;
    }
    link.held.erase(job->serial);
    ++link.num_sending;
    const FrameHeader header = *job->transfer.TakeFrame();
    const BlockId block = job->sequence->block_table[header.ordinal];
    const uint64_t send_id = next_send_id_++;
    memory_.Pin(block);
    sends_of_[job->key].insert(send_id);
    sends_.emplace(send_id, FrameSend{.job = job->key,
                                      .serial = job->serial,
                                      .ordinal = static_cast<int32_t>(header.ordinal),
                                      .block = block});
    outbox_->SendFrame(job->key.decode, header, block, send_id);
  }
  const std::optional<Done> done = job->transfer.TakeDone();
  if (done.has_value()) outbox_->ToDecode(job->key.decode, *done);
  // What is queued in a transport may have far to go. Later than this only what is lost is missing.
  const bool handed_over = job->transfer.done_taken();
  if (handed_over && TANDEM_GUARD("renew_until_sent", job->transfer.all_sent())) {
    leases_->RemoveReservation(job->key.decode, job->key.job);
  } else if (handed_over) {
    leases_->AddReservation(job->key.decode, job->key.job);
  }
  if (!job->transfer.ended()) return;
  if (absl::IsUnavailable(job->transfer.outcome())) {
    RefuseJob(job, job->transfer.outcome());
  } else {
    ForgetJob(job);
  }
}

void Engine::Impl::ExpireJobs() {
  while (const auto key = job_leases_.PopDue(now_us_)) {
    PrefillJob* const job = jobs_.at(*key).get();
    job->transfer.Expire(now_us_);
    Pump(job);
  }
  while (const auto key = job_deadlines_.PopDue(now_us_)) {
    RefuseJob(jobs_.at(*key).get(), absl::DeadlineExceededError("the deadline has passed"));
  }
}

void Engine::Impl::RefuseWaitingJobs(const absl::Status& status) {
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    PrefillJob* const job = (next++)->second.get();
    if (job->transfer.state() == PrefillTransfer::State::kQueued) RefuseJob(job, status);
  }
}

void Engine::Impl::RefuseJob(PrefillJob* job, const absl::Status& status) {
  outbox_->ToDecode(job->key.decode, PrefillRefused{.job = job->key.job, .status = status});
  ForgetJob(job);
}

void Engine::Impl::ForgetJob(PrefillJob* job) {
  const JobKey key = job->key;
  ReleaseSequence(job->sequence.get());
  graveyard_.push_back(std::move(job->sequence));
  RememberEnded(key, job_deadlines_.TimeOf(key).value_or(now_us_));
  leases_->RemoveReservation(key.decode, key.job);
  WithdrawFrames(*job);
  if (const auto link = links_.find(key.decode); link != links_.end()) {
    link->second.held.erase(job->serial);
  }
  job_leases_.Remove(key);
  job_deadlines_.Remove(key);
  jobs_.erase(key);
}

// The link is for what somebody waits for.
void Engine::Impl::WithdrawFrames(const PrefillJob& job) {
  const auto sends = sends_of_.find(job.key);
  if (sends == sends_of_.end()) return;
  for (const uint64_t send_id : sends->second) outbox_->WithdrawFrame(job.key.decode, send_id);
}

PrefillJob* Engine::Impl::FindJob(SessionId decode, JobId job) {
  const auto found = jobs_.find({.decode = decode, .job = job});
  return found == jobs_.end() ? nullptr : found->second.get();
}

}  // namespace tandem
