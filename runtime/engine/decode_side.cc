#include "runtime/engine/decode_side.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/protocol/append_bytes.h"

namespace tandem {
namespace {

// A first token that is not followed for less than this is nobody's loss.
constexpr double kLeastLossUs = 250'000;

// The job that a message is about; Renew, which names many, has none.
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

void DecodeSide::Submit(const Prompt& prompt, PrefillSubmit submit) {
  const JobId job = submit.job;
  prompts_.emplace(job, Remote{.prompt = prompt,
                               .transfer = DecodeTransfer({.job = job,
                                                           .first_block = submit.first_block,
                                                           .num_blocks = submit.num_blocks,
                                                           .timeout_us = options_.times.lease_us}),
                               .num_tokens = static_cast<int32_t>(submit.spec.token_ids.size()),
                               .num_choices = submit.spec.choices.size(),
                               .blocks = {}});
  parts_.leases->AddLease(prompt.peer.worker, job);
  parts_.outbox->ToPrefill(prompt.peer, std::move(submit));
}

void DecodeSide::OnMessage(const WorkerId& prefill, const PrefillToDecode& message) {
  if (const auto* renew = std::get_if<Renew>(&message)) {
    for (const JobId job : renew->jobs) {
      Remote* const remote = Find(job, prefill);
      if (remote == nullptr) continue;
      const auto block = last_block_us_.find(prefill);
      remote->transfer.OnRenew(block == last_block_us_.end() ? 0 : block->second,
                               options_.times.link_stalled_us, now_us());
      AfterInput(job);
    }
    return;
  }
  const JobId job = JobOf(message);
  Remote* const remote = Find(job, prefill);
  if (remote == nullptr) return;
  DecodeTransfer& transfer = remote->transfer;
  if (const auto* start = std::get_if<Start>(&message)) {
    remote->cached_tokens = start->cached_tokens;
    if (transfer.OnStart()) {
      remote->started_us = now_us();
      grants_.Want(job, transfer.num_blocks() - transfer.first_block());
      holds_.Set(job, After(now_us(), options_.times.lease_us));
      GrantHeld();
    }
  } else if (std::holds_alternative<Progress>(message)) {
    transfer.OnAlive(now_us());
  } else if (const auto* first = std::get_if<FirstToken>(&message)) {
    OnFirstToken(remote, *first);
  } else if (const auto* done = std::get_if<Done>(&message)) {
    transfer.OnDone(*done, now_us());
  } else if (const auto* refused = std::get_if<PrefillRefused>(&message)) {
    OnRefused(remote, *refused);
  }
  AfterInput(job);
}

void DecodeSide::OnFirstToken(Remote* remote, const FirstToken& first) {
  if (first.tokens.size() != remote->num_choices) {
    return EndAttempt(
        *remote, absl::InternalError(absl::StrFormat("%d first tokens for %d choices",
                                                     first.tokens.size(), remote->num_choices)));
  }
  const auto num_logprobs = static_cast<size_t>(remote->prompt.num_prompt_logprobs);
  if (first.prompt_logprobs.size() != num_logprobs) {
    return EndAttempt(
        *remote, absl::InternalError(absl::StrFormat("%d prompt logprobs came, %d were asked for",
                                                     first.prompt_logprobs.size(), num_logprobs)));
  }
  if (!remote->transfer.OnFirstToken(now_us())) return;
  remote->first_token_us = now_us();
  parts_.host->OnFirstToken(remote->prompt.attempt, first, remote->cached_tokens);
}

void DecodeSide::OnRefused(Remote* remote, const PrefillRefused& refused) {
  const absl::Status& why = refused.status;
  const bool nothing_delivered = !remote->transfer.first_token_known();
  remote->transfer.OnRefused(why);
  const AttemptKey attempt = remote->prompt.attempt;
  if (absl::IsFailedPrecondition(why)) {
    GiveUp(refused.job);  // It never could.
  } else if (absl::IsInternal(why) || absl::IsDeadlineExceeded(why)) {
    EndAttempt(*remote, why);
  } else if (absl::IsAborted(why)) {
    parts_.host->EndAttempt(
        attempt, EndedEvent{.attempt = attempt.attempt, .status = why, .by_prefill = true});
  } else if (nothing_delivered) {
    parts_.host->EndAttempt(attempt, RefusedEvent{.attempt = attempt.attempt,
                                                  .status = why,
                                                  .by_prefill = true,
                                                  .retry_after_us = refused.retry_after_us});
  } else {
    EndAttempt(*remote, absl::UnavailableError(
                            absl::StrFormat("the prefill worker gave up: %s", why.ToString())));
  }
}

void DecodeSide::EndAttempt(const Remote& remote, const absl::Status& why) {
  const AttemptKey attempt = remote.prompt.attempt;
  parts_.host->EndAttempt(attempt, EndedEvent{.attempt = attempt.attempt, .status = why});
}

void DecodeSide::OnPrefillLost(const WorkerId& prefill, const absl::Status& why) {
  // A pair that cannot exchange blocks is not worth another try; everything else is.
  const absl::StatusCode code = absl::IsFailedPrecondition(why)
                                    ? absl::StatusCode::kFailedPrecondition
                                    : absl::StatusCode::kUnavailable;
  const absl::Status status(
      code, absl::StrFormat("prefill worker %s is lost: %s", prefill.name, why.ToString()));
  last_block_us_.erase(prefill);
  if (code == absl::StatusCode::kUnavailable) {
    Pause(prefill, PauseReason::kLost, std::string(why.message()));
  }
  for (auto next = prompts_.begin(); next != prompts_.end();) {
    Remote& remote = (next++)->second;  // EndAttempt erases its entry.
    if (remote.prompt.peer.worker != prefill) continue;
    remote.transfer.OnPeerLost(status);
    EndAttempt(remote, status);
  }
}

void DecodeSide::OnFrameReceived(const ReceivedFrame& frame) {
  if (frame.outcome == FrameOutcome::kOrphaned) {
    // It has been in quarantine since its reservation closed.
    const auto orphan = orphans_.find(frame.block);
    TANDEM_CHECK(orphan != orphans_.end()) << "block " << frame.block << " is no orphan";
    orphans_.erase(orphan);
    parts_.blocks->Unpin(frame.block);
    return;
  }
  const auto found = prompts_.find(frame.job);
  // Closed between the frame's landing and this call: Close has let go of the block.
  if (found == prompts_.end()) return;
  Remote& remote = found->second;
  DecodeTransfer& transfer = remote.transfer;
  if (transfer.reservation() != frame.reservation) return;
  last_block_us_[remote.prompt.peer.worker] = now_us();
  const bool had_it = transfer.verified(frame.ordinal);
  if (const std::optional<Resend> resend = transfer.OnFrame(frame, now_us())) {
    parts_.outbox->ToPrefill(remote.prompt.peer, *resend);
  }
  if (!had_it && transfer.verified(frame.ordinal)) parts_.blocks->Unpin(frame.block);
  AfterInput(frame.job);
}

void DecodeSide::GrantHeld() {
  while (grants_.num_waiting() > 0 && grants_.oldest() < blocked_order_) {
    if (grants_.OldestMayHave()) parts_.host->MakeRoom(grants_.oldest(), grants_.wanted_blocks());
    const std::optional<JobId> job = grants_.Next(parts_.host->GrantableBlocks());
    if (!job.has_value()) break;
    holds_.Remove(*job);
    GrantBlocks(*job);
  }
}

void DecodeSide::GrantBlocks(JobId job) {
  Remote& remote = prompts_.at(job);
  DecodeTransfer& transfer = remote.transfer;
  remote.blocks = parts_.host->AppendBlocks(remote.prompt.attempt,
                                            transfer.num_blocks() - transfer.first_block());
  for (const BlockId block : remote.blocks) parts_.blocks->Pin(block);
  const Reservation reservation = parts_.receiver->Open(job, transfer.first_block(), remote.blocks);
  parts_.outbox->ToPrefill(remote.prompt.peer, transfer.OnGranted(reservation, now_us()));
  remote.granted_us = now_us();
  expiries_.Set(job, transfer.expires_at_us());
}

uint64_t DecodeSide::OldestHeldGrant() const {
  if (grants_.wanted_blocks() <= parts_.host->GrantableBlocks()) return kNoOrder;
  return grants_.oldest();
}

// Whatever the input has made of it. It may be gone.
void DecodeSide::AfterInput(JobId job) {
  const auto found = prompts_.find(job);
  if (found == prompts_.end()) return;
  const DecodeTransfer& transfer = found->second.transfer;
  if (transfer.state() == DecodeTransfer::State::kComplete) {
    Commit(job);
  } else if (transfer.state() == DecodeTransfer::State::kFailed) {
    if (absl::IsDataLoss(transfer.failure())) {
      GiveUp(job);
    } else {
      EndAttempt(found->second, transfer.failure());
    }
  } else if (transfer.state() == DecodeTransfer::State::kGranted) {
    expiries_.Set(job, transfer.expires_at_us());
  }
}

// All blocks are here and verified: the sequence joins the batch, its prefix the cache.
void DecodeSide::Commit(JobId job) {
  const Remote& remote = prompts_.at(job);
  const AttemptKey attempt = remote.prompt.attempt;
  JudgeLink(remote);
  parts_.outbox->OnTransferred(now_us() - remote.granted_us);
  End(job);
  parts_.host->OnTransferred(attempt);
}

void DecodeSide::GiveUp(JobId job) {
  const AttemptKey attempt = prompts_.at(job).prompt.attempt;
  End(job);
  parts_.host->ComputeHere(attempt);
}

// The one place where a transfer's resources here go, whatever it came to. Blocks stay with the
// sequence; those that a frame may still write to stay pinned.
void DecodeSide::End(JobId job) {
  const auto entry = prompts_.extract(job);
  if (entry.empty()) return;
  const Remote& remote = entry.mapped();
  const DecodeTransfer& transfer = remote.transfer;
  parts_.leases->RemoveLease(remote.prompt.peer.worker, job);
  grants_.Remove(job);
  holds_.Remove(job);
  expiries_.Remove(job);
  if (transfer.reservation().generation != 0) {
    const std::vector<int32_t> in_flight = parts_.receiver->Close(transfer.reservation());
    for (size_t i = 0; i < remote.blocks.size(); ++i) {
      const BlockId block = remote.blocks[i];
      if (transfer.verified(transfer.first_block() + static_cast<int32_t>(i))) continue;
      if (std::find(in_flight.begin(), in_flight.end(), block) == in_flight.end()) {
        parts_.blocks->Unpin(block);
      } else {
        orphans_.insert(block);
      }
    }
  }
  if (transfer.state() == DecodeTransfer::State::kComplete) {
    parts_.outbox->ToPrefill(remote.prompt.peer, Committed{.job = job});
  } else {
    // Nothing to remember once the deadline has passed.
    const int64_t time_left_us = std::max<int64_t>(0, remote.prompt.deadline_us - now_us());
    parts_.outbox->ToPrefill(remote.prompt.peer,
                             PrefillCancel{.job = job, .time_left_us = time_left_us});
  }
}

void DecodeSide::Expire() {
  while (const auto job = expiries_.PopDue(now_us())) ExpireReservation(*job);
}

void DecodeSide::ExpireReservation(JobId job) {
  Remote& remote = prompts_.at(job);
  remote.transfer.Expire(now_us());
  if (remote.transfer.state() != DecodeTransfer::State::kFailed) return;
  Pause(remote.prompt.peer.worker, PauseReason::kTimeout,
        std::string(remote.transfer.failure().message()));
  AfterInput(job);
}

int64_t DecodeSide::next_us() const {
  // What has been held for too long already waits for something else.
  const int64_t held_us = holds_.next_us() > now_us() ? holds_.next_us() : kNeverUs;
  return std::min(expiries_.next_us(), held_us);
}

bool DecodeSide::YieldYoungest(bool peers_hold_blocks) {
  if (grants_.granted_blocks() > 0) return false;
  std::optional<JobId> youngest;
  for (const auto& [job, remote] : prompts_) {
    const bool waits_too_long = holds_.TimeOf(job).value_or(kNeverUs) <= now_us();
    const bool has_prefix = !peers_hold_blocks && remote.prompt.cached_tokens > 0;
    if (!waits_too_long && !has_prefix) continue;
    youngest = job;
  }
  if (!youngest.has_value()) return false;
  GiveUp(*youngest);
  return true;
}

void DecodeSide::Pause(const WorkerId& peer, PauseReason reason, const std::string& detail) {
  if (pauses_.OnFailed(peer, now_us())) parts_.outbox->OnPeerPaused(peer, reason, detail);
}

// All blocks have come. That the last came later after the first token than all of the prompt would
// have taken to compute here, at the speed of the prefill worker, is a loss.
void DecodeSide::JudgeLink(const Remote& remote) {
  const WorkerId& peer = remote.prompt.peer.worker;
  const int64_t computed_there = std::max<int64_t>(1, remote.num_tokens - remote.cached_tokens);
  const int64_t missing = remote.num_tokens - remote.prompt.cached_tokens;
  const double here_us = static_cast<double>(remote.first_token_us - remote.started_us) *
                         static_cast<double>(missing) / static_cast<double>(computed_there);
  const auto late_us =
      static_cast<double>(now_us() - std::max(remote.first_token_us, remote.granted_us));
  if (!remote.prompt.at_any_price && late_us > std::max(here_us, kLeastLossUs)) {
    Pause(peer, PauseReason::kSlow,
          absl::StrFormat("the last block of %d tokens came %.0f ms after the first token; the %d "
                          "that were missing would have been computed here in %.0f ms",
                          remote.num_tokens, late_us / 1000, missing, here_us / 1000));
  } else {
    pauses_.OnWorked(peer);
  }
}

DecodeSide::Remote* DecodeSide::Find(JobId job, const WorkerId& prefill) {
  const auto found = prompts_.find(job);
  if (found == prompts_.end() || found->second.prompt.peer.worker != prefill) return nullptr;
  return &found->second;
}

void DecodeSide::CountPins(std::map<BlockId, int32_t>* pins) const {
  for (const auto& [job, remote] : prompts_) {
    for (size_t i = 0; i < remote.blocks.size(); ++i) {
      const auto ordinal = remote.transfer.first_block() + static_cast<int32_t>(i);
      if (!remote.transfer.verified(ordinal)) ++(*pins)[remote.blocks[i]];
    }
  }
  for (const BlockId block : orphans_) ++(*pins)[block];
}

void DecodeSide::AppendState(std::string* bytes) const {
  for (const auto& [job, remote] : prompts_) {
    AppendBytes(job, bytes);
    remote.transfer.AppendState(bytes);
    for (const BlockId block : remote.blocks) AppendBytes(block, bytes);
    bytes->push_back('|');
  }
  grants_.AppendState(bytes);
  for (const BlockId block : orphans_) AppendBytes(block, bytes);
}

}  // namespace tandem
