#include "runtime/engine/prefill_side.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/guard.h"
#include "runtime/base/status_macros.h"
#include "runtime/protocol/append_bytes.h"

namespace tandem {

bool PrefillSide::OnSubmit(const Prompt& prompt, absl::Status fits, int64_t retry_after_us) {
  const JobKey& key = prompt.key;
  if (Knows(key)) return false;
  if (!ended_.Admits(key)) fits = absl::CancelledError("cancelled before it arrived");
  const int64_t deadline_us = After(now_us(), prompt.time_left_us);
  if (!fits.ok()) {
    ended_.AddEnded(key, deadline_us, now_us());
    parts_.outbox->ToDecode(key.decode, PrefillRefused{.job = key.job,
                                                       .status = std::move(fits),
                                                       .retry_after_us = retry_after_us});
    return false;
  }
  const PrefillTransfer transfer({.job = key.job,
                                  .first_block = prompt.first_block,
                                  .num_blocks = prompt.num_blocks,
                                  .block_bytes = options_.block_bytes,
                                  .lease_us = options_.lease_us},
                                 now_us());
  leases_.Set(key, transfer.lease_until_us());
  deadlines_.Set(key, deadline_us);
  jobs_.emplace(key, Job{.key = key, .serial = prompt.serial, .transfer = transfer, .blocks = {}});
  return true;
}

// It is here, or has ended, which is remembered until its deadline and for as long as frames of it
// are under way.
bool PrefillSide::Knows(const JobKey& key) const {
  return jobs_.contains(key) || sends_of_.contains(key) || ended_.Ended(key);
}

void PrefillSide::OnMessage(SessionId decode, const DecodeToPrefill& message) {
  if (const auto* cancel = std::get_if<PrefillCancel>(&message)) {
    OnCancel(decode, *cancel);
  } else if (const auto* renew = std::get_if<Renew>(&message)) {
    for (const JobId id : renew->jobs) {
      Job* const job = Find(decode, id);
      if (job == nullptr) continue;
      job->transfer.OnRenew(now_us());
      leases_.Set(job->key, job->transfer.lease_until_us());
    }
  } else if (const auto* grant = std::get_if<Grant>(&message)) {
    if (Job* const job = Find(decode, grant->job)) {
      job->transfer.OnGrant(*grant);
      Pump(job);
    }
  } else if (const auto* resend = std::get_if<Resend>(&message)) {
    if (Job* const job = Find(decode, resend->job)) {
      job->transfer.OnResend(*resend);
      Pump(job);
    }
  } else if (const auto* committed = std::get_if<Committed>(&message)) {
    if (Job* const job = Find(decode, committed->job)) {
      job->transfer.End(absl::OkStatus());
      Pump(job);
    }
  }
}

void PrefillSide::OnCancel(SessionId decode, const PrefillCancel& cancel) {
  if (Job* const job = Find(decode, cancel.job)) {
    job->transfer.End(absl::CancelledError("cancelled by the decode worker"));
    Pump(job);
  } else if (const JobKey key{.decode = decode, .job = cancel.job}; !Knows(key)) {
    ended_.AddAborted(key, After(now_us(), cancel.time_left_us), now_us());
  }
}

void PrefillSide::OnDecodeLost(SessionId decode) {
  for (auto next = jobs_.lower_bound({.decode = decode}); next != jobs_.end();) {
    Job* const job = &(next++)->second;  // Forget erases its entry.
    if (job->key.decode != decode) break;
    Forget(job);
  }
}

void PrefillSide::OnFrameSent(uint64_t send_id, bool ok) {
  const auto found = sends_.find(send_id);
  if (found == sends_.end()) return;
  const FrameSend send = found->second;
  sends_.erase(found);
  parts_.blocks->Unpin(send.block);
  const auto of = sends_of_.find(send.job);
  of->second.erase(send_id);
  if (of->second.empty()) sends_of_.erase(of);
  --links_.at(send.job.decode).num_sending;
  const auto job = jobs_.find(send.job);
  if (job != jobs_.end() && job->second.serial == send.serial) {
    job->second.transfer.OnFrameSent(send.ordinal, ok);
    Pump(&job->second);
  }
  PumpHeld(send.job.decode);
}

// Some frame of the link has gone.
void PrefillSide::PumpHeld(SessionId decode) {
  const auto link = links_.find(decode);
  const Link& of = link->second;
  while (!of.held.empty() && of.num_sending < options_.max_frames_ahead) {
    Pump(&jobs_.at(of.held.begin()->second));
  }
  if (of.held.empty() && of.num_sending == 0) links_.erase(link);
}

void PrefillSide::OnStarted(const JobKey& key, int32_t cached_tokens,
                            std::span<const BlockId> final_blocks) {
  Job* const job = &jobs_.at(key);
  job->transfer.Start();
  parts_.leases->AddReservation(key.decode, key.job);
  parts_.outbox->ToDecode(key.decode, Start{.job = key.job, .cached_tokens = cached_tokens});
  // Nobody may be refused whose run is planned. What fails now is offered again with the chunk.
  OfferBlocks(job, final_blocks).IgnoreError();
}

absl::Status PrefillSide::OnChunk(const JobKey& key, std::span<const BlockId> final_blocks) {
  Job* const job = &jobs_.at(key);
  parts_.outbox->ToDecode(key.decode, Progress{.job = key.job});
  return PumpOffered(job, OfferBlocks(job, final_blocks));
}

absl::Status PrefillSide::OnFirstToken(const JobKey& key, FirstToken first, bool goes_on,
                                       std::span<const BlockId> final_blocks) {
  Job* const job = &jobs_.at(key);
  parts_.outbox->ToDecode(key.decode, std::move(first));
  job->transfer.OnFirstTokenSent();
  if (goes_on) return PumpOffered(job, OfferBlocks(job, final_blocks));
  job->transfer.End(absl::OkStatus());  // The decode worker needs nothing more.
  return PumpOffered(job, absl::OkStatus());
}

// Tells the transfer which blocks will not change any more: all that are new, or none.
absl::Status PrefillSide::OfferBlocks(Job* job, std::span<const BlockId> final_blocks) {
  const auto num_known = static_cast<size_t>(job->transfer.first_block()) + job->blocks.size();
  if (num_known >= final_blocks.size()) return absl::OkStatus();
  const std::span<const BlockId> offered = final_blocks.subspan(num_known);
  std::vector<uint32_t> checksums(offered.size());
  TANDEM_RETURN_IF_ERROR(parts_.blocks->Checksums(offered, checksums.data()));
  for (size_t i = 0; i < offered.size(); ++i) {
    job->blocks.push_back(offered[i]);
    job->transfer.OnBlockReady(static_cast<int32_t>(num_known + i), checksums[i]);
  }
  return absl::OkStatus();
}

// A device that cannot read what it has written is one whose step has failed.
absl::Status PrefillSide::PumpOffered(Job* job, const absl::Status& offered) {
  if (offered.ok()) {
    Pump(job);
  } else {
    Refuse(job, absl::AbortedError(absl::StrCat("no checksums of blocks: ", offered.message())));
  }
  return offered;
}

// Does what the transfer's last input has made possible, or its end necessary.
void PrefillSide::Pump(Job* job) {
  while (job->transfer.has_frame()) {
    Link& link = links_[job->key.decode];
    if (link.num_sending >= options_.max_frames_ahead) {
      link.held.emplace(job->serial, job->key);
      break;
    }
    link.held.erase(job->serial);
    ++link.num_sending;
    const FrameHeader header = *job->transfer.TakeFrame();
    const auto ordinal = static_cast<int32_t>(header.ordinal);
    const BlockId block = job->blocks[static_cast<size_t>(ordinal - job->transfer.first_block())];
    const uint64_t send_id = next_send_id_++;
    parts_.blocks->Pin(block);
    sends_of_[job->key].insert(send_id);
    sends_.emplace(
        send_id,
        FrameSend{.job = job->key, .serial = job->serial, .ordinal = ordinal, .block = block});
    parts_.outbox->SendFrame(job->key.decode, header, block, send_id);
  }
  const std::optional<Done> done = job->transfer.TakeDone();
  if (done.has_value()) parts_.outbox->ToDecode(job->key.decode, *done);
  // What is queued in a transport may have far to go. Later than this only what is lost is missing.
  const bool handed_over = job->transfer.done_taken();
  if (handed_over && TANDEM_GUARD("renew_until_sent", job->transfer.all_sent())) {
    parts_.leases->RemoveReservation(job->key.decode, job->key.job);
  } else if (handed_over) {
    parts_.leases->AddReservation(job->key.decode, job->key.job);
  }
  if (!job->transfer.ended()) return;
  if (absl::IsUnavailable(job->transfer.outcome())) {
    Refuse(job, job->transfer.outcome());
  } else {
    Forget(job);
  }
}

void PrefillSide::Expire() {
  while (const auto key = leases_.PopDue(now_us())) ExpireLease(*key);
  while (const auto key = deadlines_.PopDue(now_us())) {
    Refuse(*key, absl::DeadlineExceededError("the deadline has passed"));
  }
  ended_.Expire(now_us());
}

void PrefillSide::ExpireLease(const JobKey& key) {
  Job* const job = &jobs_.at(key);
  job->transfer.Expire(now_us());
  Pump(job);
}

int64_t PrefillSide::next_us() const { return std::min(leases_.next_us(), deadlines_.next_us()); }

void PrefillSide::RefuseQueued(const absl::Status& status) {
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    Job* const job = &(next++)->second;
    if (job->transfer.state() == PrefillTransfer::State::kQueued) Refuse(job, status);
  }
}

void PrefillSide::Refuse(const JobKey& key, const absl::Status& status) {
  Refuse(&jobs_.at(key), status);
}

void PrefillSide::Refuse(Job* job, const absl::Status& status) {
  parts_.outbox->ToDecode(job->key.decode, PrefillRefused{.job = job->key.job, .status = status});
  Forget(job);
}

// The one place where a transfer's resources here go.
void PrefillSide::Forget(Job* job) {
  const JobKey key = job->key;
  parts_.host->EndPrompt(key);
  ended_.AddEnded(key, deadlines_.TimeOf(key).value_or(now_us()), now_us());
  parts_.leases->RemoveReservation(key.decode, key.job);
  WithdrawFrames(*job);
  if (const auto link = links_.find(key.decode); link != links_.end()) {
    link->second.held.erase(job->serial);
  }
  leases_.Remove(key);
  deadlines_.Remove(key);
  jobs_.erase(key);
}

// The link is for what somebody waits for.
void PrefillSide::WithdrawFrames(const Job& job) {
  const auto sends = sends_of_.find(job.key);
  if (sends == sends_of_.end()) return;
  for (const uint64_t id : sends->second) parts_.outbox->WithdrawFrame(job.key.decode, id);
}

PrefillSide::Job* PrefillSide::Find(SessionId decode, JobId job) {
  const auto found = jobs_.find({.decode = decode, .job = job});
  return found == jobs_.end() ? nullptr : &found->second;
}

bool PrefillSide::holds_blocks() const {
  return std::any_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second.transfer.state() != PrefillTransfer::State::kQueued;
  });
}

void PrefillSide::CountPins(std::map<BlockId, int32_t>* pins) const {
  for (const auto& [id, send] : sends_) ++(*pins)[send.block];
}

absl::Status PrefillSide::Audit() const {
  std::map<JobKey, std::set<uint64_t>> sends_of;
  std::map<SessionId, int32_t> sending;
  for (const auto& [id, send] : sends_) {
    sends_of[send.job].insert(id);
    ++sending[send.job.decode];
  }
  const bool same_links =
      std::equal(links_.begin(), links_.end(), sending.begin(), sending.end(),
                 [](const auto& link, const auto& frames) {
                   return link.first == frames.first && link.second.num_sending == frames.second;
                 });
  if (!same_links || sends_of != sends_of_) {
    return absl::InternalError(absl::StrFormat(
        "%d frames are on their way, of %d jobs to %d decode workers; known are %d jobs and %d "
        "links",
        sends_.size(), sends_of.size(), sending.size(), sends_of_.size(), links_.size()));
  }
  return AuditRenewals();
}

// From Start until the last frame has left.
absl::Status PrefillSide::AuditRenewals() const {
  std::set<JobKey> renewed, unsent;
  for (const auto& [decode, renew] : parts_.leases->ReservationRenewals()) {
    for (const JobId job : renew.jobs) renewed.insert({.decode = decode, .job = job});
  }
  for (const auto& [key, job] : jobs_) {
    const bool all_sent = job.transfer.done_taken() && job.transfer.all_sent();
    if (job.transfer.state() != PrefillTransfer::State::kQueued && !all_sent) unsent.insert(key);
  }
  if (renewed == unsent) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%d reservations are renewed, %d transfers are unsent",
                                             renewed.size(), unsent.size()));
}

void PrefillSide::AppendState(std::string* bytes) const {
  for (const auto& [key, job] : jobs_) {
    AppendBytes(key, bytes);
    AppendBytes(job.serial, bytes);
    job.transfer.AppendState(bytes);
    for (const BlockId block : job.blocks) AppendBytes(block, bytes);
    bytes->push_back('|');
  }
  ended_.AppendState(bytes);
  // The numbers of sends are names only.
  std::vector<std::tuple<JobKey, uint64_t, int32_t, BlockId>> sends;
  for (const auto& [id, s] : sends_) sends.emplace_back(s.job, s.serial, s.ordinal, s.block);
  std::sort(sends.begin(), sends.end());
  for (const auto& [key, serial, ordinal, block] : sends) {
    AppendBytes(key, bytes);
    AppendBytes(serial, bytes);
    AppendBytes(ordinal, bytes);
    AppendBytes(block, bytes);
  }
  for (const auto& [decode, link] : links_) {
    for (const auto& [serial, key] : link.held) AppendBytes(serial, bytes);
  }
}

}  // namespace tandem
