// Prompts of ours that a prefill worker computes: promise, grant, arrival, commit.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/math.h"
#include "runtime/engine/engine_impl.h"

namespace tandem {
namespace {

// A first token that is not followed for less than this is nobody's loss.
constexpr double kLeastLossUs = 250'000;

// Of everything but Renew, which names many.
JobId JobOf(const PrefillToDecode& message) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.job; }) {
          return m.job;
        } else {
          return JobId();
        }
      },
      message);
}

}  // namespace

// True: a prefill worker has the prompt now. What is cached here is held from now on and will not
// travel.
bool Engine::Impl::TrySubmitToPrefill(Attempt* attempt, const Submit& submit) {
  if (submit.prefill.address.empty() || submit.prefill.worker == options_.self) return false;
  if (pauses_.Paused(submit.prefill.worker, now_us_)) return false;
  EngineSequence* const prompt = attempt->sequences.front().get();
  const auto num_tokens = static_cast<int32_t>(prompt->token_ids.size());
  const int32_t missing = num_tokens - memory_.CountCachedBlocks(*prompt) * options_.block_tokens;
  if (missing < std::max(submit.disaggregate_from_tokens, 1)) return false;

  const int32_t num_blocks = CeilDiv(num_tokens, options_.block_tokens);
  // No choice goes on after its first token: nothing needs to travel, nothing is promised.
  const bool only_first_token =
      RequestedFinish(attempt->spec, num_tokens, kNoToken) != FinishReason::kNone;
  if (!only_first_token) memory_.AttachPrefix(prompt);
  const int32_t first_block =
      only_first_token ? num_blocks : static_cast<int32_t>(prompt->block_table.size());
  const JobId job = attempt->order;
  attempt->remote = std::make_unique<RemotePrefill>(
      RemotePrefill{.job = job,
                    .peer = submit.prefill,
                    .transfer = DecodeTransfer({.job = job,
                                                .first_block = first_block,
                                                .num_blocks = num_blocks,
                                                .timeout_us = options_.times.lease_us}),
                    .at_any_price = submit.disaggregate_from_tokens <= 1});
  remote_.emplace(job, attempt);
  leases_->AddLease(submit.prefill.worker, job);
  outbox_->ToPrefill(submit.prefill, PrefillSubmit{.job = job,
                                                   .attempt = submit.attempt,
                                                   .spec = submit.spec,
                                                   .first_block = first_block,
                                                   .num_blocks = num_blocks});
  return true;
}

void Engine::Impl::OnPrefillMessage(const WorkerId& prefill, const PrefillToDecode& message,
                                    int64_t now_us) {
  Note(now_us);
  if (const auto* renew = std::get_if<Renew>(&message)) {
    for (const JobId job : renew->jobs) {
      Attempt* const attempt = FindRemote(job, prefill);
      if (attempt == nullptr) continue;
      const auto block = last_block_us_.find(prefill);
      attempt->remote->transfer.OnRenew(block == last_block_us_.end() ? 0 : block->second,
                                        options_.times.link_stalled_us, now_us_);
      AfterTransferInput(attempt);
    }
    return;
  }
  const JobId job = JobOf(message);
  Attempt* const attempt = FindRemote(job, prefill);
  if (attempt == nullptr) return;
  DecodeTransfer& transfer = attempt->remote->transfer;
  if (const auto* start = std::get_if<Start>(&message)) {
    attempt->remote->cached_tokens = start->cached_tokens;
    if (transfer.OnStart()) {
      attempt->remote->started_us = now_us_;
      grants_.Want(job, transfer.num_blocks() - transfer.first_block());
      holds_.Set(job, After(now_us_, options_.times.lease_us));
      GrantHeld();
    }
  } else if (std::holds_alternative<Progress>(message)) {
    transfer.OnAlive(now_us_);
  } else if (const auto* first = std::get_if<FirstToken>(&message)) {
    if (!OnFirstToken(attempt, *first)) return;
  } else if (const auto* done = std::get_if<Done>(&message)) {
    transfer.OnDone(*done, now_us_);
  } else if (const auto* refused = std::get_if<PrefillRefused>(&message)) {
    OnPrefillRefused(attempt, *refused);
    return;
  }
  AfterTransferInput(attempt);
}

// False: the attempt is over.
bool Engine::Impl::OnFirstToken(Attempt* attempt, const FirstToken& first) {
  const EngineSequence& prompt = *attempt->sequences.front();
  if (first.tokens.size() != prompt.draws.size()) {
    EndAttempt(attempt,
               absl::InternalError(absl::StrFormat("%d first tokens for %d choices",
                                                   first.tokens.size(), prompt.draws.size())));
    return false;
  }
  const size_t num_logprobs =
      prompt.num_prompt_logprobs < 0 ? 0 : static_cast<size_t>(attempt->spec.prompt_tokens) - 1;
  if (first.prompt_logprobs.size() != num_logprobs) {
    EndAttempt(attempt,
               absl::InternalError(absl::StrFormat("%d prompt logprobs came, %d were asked for",
                                                   first.prompt_logprobs.size(), num_logprobs)));
    return false;
  }
  if (!attempt->remote->transfer.OnFirstToken(now_us_)) return true;
  attempt->remote->first_token_us = now_us_;
  std::vector<SampledToken> tokens = first.tokens;
  attempt->prompt_logprobs = first.prompt_logprobs;
  attempt->cached_tokens = std::max(attempt->remote->cached_tokens, prompt.num_computed);
  DeliverFirstTokens(attempt, &tokens);
  if (!attempt->started_choices.empty()) return true;
  FinishAttempt(attempt);
  return false;
}

void Engine::Impl::OnPrefillRefused(Attempt* attempt, const PrefillRefused& refused) {
  const absl::Status& why = refused.status;
  const bool nothing_delivered = !attempt->remote->transfer.first_token_known();
  attempt->remote->transfer.OnRefused(why);
  if (absl::IsFailedPrecondition(why)) {
    ComputeHere(attempt);  // It never could.
  } else if (absl::IsInternal(why) || absl::IsDeadlineExceeded(why)) {
    EndAttempt(attempt, why);
  } else if (absl::IsAborted(why)) {
    outbox_->ToRouter(
        attempt->key.router,
        EndedEvent{.attempt = attempt->key.attempt, .status = why, .by_prefill = true});
    ForgetAttempt(attempt);
  } else if (nothing_delivered) {
    outbox_->ToRouter(attempt->key.router, RefusedEvent{.attempt = attempt->key.attempt,
                                                        .status = why,
                                                        .by_prefill = true,
                                                        .retry_after_us = refused.retry_after_us});
    ForgetAttempt(attempt);
  } else {
    EndAttempt(attempt, absl::UnavailableError(
                            absl::StrFormat("the prefill worker gave up: %s", why.ToString())));
  }
}

void Engine::Impl::OnPrefillLost(const WorkerId& prefill, const absl::Status& why, int64_t now_us) {
  Note(now_us);
  // A pair that cannot exchange blocks is not worth another try; everything else is.
  const absl::StatusCode code = absl::IsFailedPrecondition(why)
                                    ? absl::StatusCode::kFailedPrecondition
                                    : absl::StatusCode::kUnavailable;
  const absl::Status status(
      code, absl::StrFormat("prefill worker %s is lost: %s", prefill.name, why.ToString()));
  last_block_us_.erase(prefill);
  if (code == absl::StatusCode::kUnavailable) PausePeer(prefill, PauseReason::kLost);
  for (auto next = remote_.begin(); next != remote_.end();) {
    Attempt* const attempt = (next++)->second;  // EndAttempt erases its entry.
    if (attempt->remote->peer.worker != prefill) continue;
    attempt->remote->transfer.OnPeerLost(status);
    EndAttempt(attempt, status);
  }
}

void Engine::Impl::OnFrameReceived(const ReceivedFrame& frame, int64_t now_us) {
  Note(now_us);
  if (frame.outcome == FrameOutcome::kOrphaned) {
    // It has been in quarantine since its reservation closed.
    const auto orphan = orphans_.find(frame.block);
    TANDEM_CHECK(orphan != orphans_.end()) << "block " << frame.block << " is no orphan";
    orphans_.erase(orphan);
    memory_.Unpin(frame.block);
    return;
  }
  const auto found = remote_.find(frame.job);
  // Closed between the frame's landing and this call: Close has let go of the block.
  if (found == remote_.end()) return;
  Attempt* const attempt = found->second;
  if (attempt->remote->transfer.reservation() != frame.reservation) return;
  DecodeTransfer& transfer = attempt->remote->transfer;
  last_block_us_[attempt->remote->peer.worker] = now_us_;
  const bool had_it = transfer.verified(frame.ordinal);
  if (const std::optional<Resend> resend = transfer.OnFrame(frame, now_us_)) {
    outbox_->ToPrefill(attempt->remote->peer, *resend);
  }
  if (!had_it && transfer.verified(frame.ordinal)) memory_.Unpin(frame.block);
  AfterTransferInput(attempt);
}

// Grants what is held, oldest first, but never ahead of an older sequence that lacks blocks here.
void Engine::Impl::GrantHeld() {
  while (grants_.num_waiting() > 0 && grants_.oldest() < blocked_order_) {
    if (grants_.OldestMayHave()) {
      preempted_ += scheduler_.MakeRoom(grants_.oldest(), grants_.wanted_blocks());
    }
    const std::optional<JobId> job = grants_.Next(GrantableBlocks());
    if (!job.has_value()) break;
    holds_.Remove(*job);
    GrantBlocks(remote_.at(*job));
  }
}

void Engine::Impl::GrantBlocks(Attempt* attempt) {
  EngineSequence* const prompt = attempt->sequences.front().get();
  DecodeTransfer& transfer = attempt->remote->transfer;
  const auto first = static_cast<size_t>(transfer.first_block());
  TANDEM_CHECK(memory_.AppendBlocks(prompt, transfer.num_blocks() - transfer.first_block()))
      << memory_.num_available() << " blocks available after all";
  const auto granted = std::span<const BlockId>(prompt->block_table).subspan(first);
  for (BlockId block : granted) memory_.Pin(block);
  const JobId job = attempt->remote->job;
  const Reservation reservation = receiver_->Open(job, transfer.first_block(), granted);
  outbox_->ToPrefill(attempt->remote->peer, transfer.OnGranted(reservation, now_us_));
  attempt->remote->granted_us = now_us_;
  reservation_expiries_.Set(job, transfer.expires_at_us());
}

// A block for everyone who runs stays, as for admissions.
int32_t Engine::Impl::GrantableBlocks() const {
  return std::max(0, memory_.num_available() - scheduler_.num_running());
}

// Younger sequences must not take what the oldest held grant waits for.
uint64_t Engine::Impl::OldestHeldGrant() const {
  if (grants_.wanted_blocks() <= GrantableBlocks()) return kNoOrder;
  return grants_.oldest();
}

void Engine::Impl::AfterTransferInput(Attempt* attempt) {
  const DecodeTransfer& transfer = attempt->remote->transfer;
  if (transfer.state() == DecodeTransfer::State::kComplete) {
    Commit(attempt);
  } else if (transfer.state() == DecodeTransfer::State::kFailed) {
    if (absl::IsDataLoss(transfer.failure())) {
      ComputeHere(attempt);
    } else {
      EndAttempt(attempt, transfer.failure());
    }
  } else if (transfer.state() == DecodeTransfer::State::kGranted) {
    reservation_expiries_.Set(attempt->remote->job, transfer.expires_at_us());
  }
}

// All blocks are here and verified: the sequence joins the batch, its prefix the cache.
void Engine::Impl::Commit(Attempt* attempt) {
  JudgeLink(*attempt);
  outbox_->OnTransferred(now_us_ - attempt->remote->granted_us);
  EndTransfer(attempt);
  attempt->charge.reset();
  EngineSequence* const prompt = attempt->sequences.front().get();
  prompt->num_computed = static_cast<int32_t>(prompt->token_ids.size());
  memory_.CacheComputed(prompt);
  ForkChoices(attempt);
}

// Gives the transfer up but not the attempt: its prompt is computed here. First tokens that were
// delivered stay delivered.
void Engine::Impl::ComputeHere(Attempt* attempt) {
  EndTransfer(attempt);
  EngineSequence* const prompt = attempt->sequences.front().get();
  memory_.Release(prompt);
  if (attempt->started_choices.empty()) {
    scheduler_.Enqueue(prompt);
  } else {
    ForkChoices(attempt);
  }
}

// The one place where a transfer's resources here go, whatever it came to. Blocks stay with the
// sequence; those that a frame may still write to stay pinned.
void Engine::Impl::EndTransfer(Attempt* attempt) {
  if (attempt->remote == nullptr) return;
  const std::unique_ptr<RemotePrefill> remote = std::move(attempt->remote);
  const DecodeTransfer& transfer = remote->transfer;
  remote_.erase(remote->job);
  leases_->RemoveLease(remote->peer.worker, remote->job);
  grants_.Remove(remote->job);
  holds_.Remove(remote->job);
  reservation_expiries_.Remove(remote->job);
  if (transfer.reservation().generation != 0) {
    const std::vector<int32_t> in_flight = receiver_->Close(transfer.reservation());
    const std::vector<BlockId>& table = attempt->sequences.front()->block_table;
    for (int32_t i = transfer.first_block(); i < transfer.num_blocks(); ++i) {
      const BlockId block = table[static_cast<size_t>(i)];
      if (transfer.verified(i)) continue;
      if (std::find(in_flight.begin(), in_flight.end(), block) == in_flight.end()) {
        memory_.Unpin(block);
      } else {
        orphans_.insert(block);
      }
    }
  }
  if (transfer.state() == DecodeTransfer::State::kComplete) {
    outbox_->ToPrefill(remote->peer, Committed{.job = remote->job});
  } else {
    // Nothing to remember once the deadline has passed.
    const int64_t time_left_us = std::max<int64_t>(0, attempt->deadline_us - now_us_);
    outbox_->ToPrefill(remote->peer,
                       PrefillCancel{.job = remote->job, .time_left_us = time_left_us});
  }
}

void Engine::Impl::ExpireReservations() {
  while (const auto job = reservation_expiries_.PopDue(now_us_)) {
    Attempt* const attempt = remote_.at(*job);
    attempt->remote->transfer.Expire(now_us_);
    if (attempt->remote->transfer.state() == DecodeTransfer::State::kFailed) {
      PausePeer(attempt->remote->peer.worker, PauseReason::kTimeout);
      AfterTransferInput(attempt);
    }
  }
}

// Nothing runs, and nothing that is under way is about to give blocks back. Then either prompts
// that wait for a grant hold cached prefixes, which together can fill the pool; or what is computed
// here for a peer holds the blocks, while that peer holds its own grant back for want of what it
// computes for us, and neither lets go first. The youngest prompt that waits gives its prefix up,
// or its place at the peer, and is computed here in its turn. True if there was one.
bool Engine::Impl::RelieveMemory() {
  if (scheduler_.idle() && grants_.num_waiting() == 0) return false;
  if (grants_.granted_blocks() > 0 || memory_.Counts().quarantined > 0) return false;
  const bool peers_hold_blocks = std::any_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second->transfer.state() != PrefillTransfer::State::kQueued;
  });
  Attempt* youngest = nullptr;
  for (const auto& [job, attempt] : remote_) {  // In order of arrival.
    const bool waits_too_long = holds_.TimeOf(job).value_or(kNever) <= now_us_;
    const bool has_prefix = !peers_hold_blocks && !attempt->sequences.front()->block_table.empty();
    if (!waits_too_long && !has_prefix) continue;
    youngest = attempt;
  }
  if (youngest == nullptr) return false;
  ComputeHere(youngest);
  return true;
}

void Engine::Impl::PausePeer(const WorkerId& peer, PauseReason reason) {
  if (pauses_.OnFailed(peer, now_us_)) outbox_->OnPeerPaused(peer, reason);
}

// All blocks have come. That the last came later after the first token than all of the prompt would
// have taken to compute here, at the speed of the prefill worker, is a loss.
void Engine::Impl::JudgeLink(const Attempt& attempt) {
  const RemotePrefill& remote = *attempt.remote;
  const EngineSequence& prompt = *attempt.sequences.front();
  const auto num_tokens = static_cast<int64_t>(prompt.token_ids.size());
  const int64_t computed_there = std::max<int64_t>(1, num_tokens - remote.cached_tokens);
  const int64_t missing = num_tokens - prompt.num_computed;
  const double here_us = static_cast<double>(remote.first_token_us - remote.started_us) *
                         static_cast<double>(missing) / static_cast<double>(computed_there);
  const auto late_us =
      static_cast<double>(now_us_ - std::max(remote.first_token_us, remote.granted_us));
  if (!remote.at_any_price && late_us > std::max(here_us, kLeastLossUs)) {
    PausePeer(remote.peer.worker, PauseReason::kSlow);
  } else {
    pauses_.OnWorked(remote.peer.worker);
  }
}

// Null: `prefill` does not compute it, or does not any more.
Attempt* Engine::Impl::FindRemote(JobId job, const WorkerId& prefill) const {
  const auto found = remote_.find(job);
  if (found == remote_.end() || found->second->remote->peer.worker != prefill) return nullptr;
  return found->second;
}

}  // namespace tandem
