#include "runtime/protocol/prefill_transfer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/guard.h"
#include "runtime/protocol/append_bytes.h"
#include "runtime/protocol/reservation_table.h"

namespace tandem {

PrefillTransfer::PrefillTransfer(const Options& options, int64_t now_us)
    : options_(options), lease_until_us_(now_us + options.lease_us) {
  TANDEM_CHECK(0 <= options.first_block && options.first_block <= options.num_blocks)
      << "blocks " << options.first_block << " to " << options.num_blocks;
  ordinals_.resize(static_cast<size_t>(options.num_blocks - options.first_block));
}

PrefillTransfer::Ordinal* PrefillTransfer::Find(int32_t ordinal) {
  if (ordinal < options_.first_block || ordinal >= options_.num_blocks) return nullptr;
  return &ordinals_[static_cast<size_t>(ordinal - options_.first_block)];
}

void PrefillTransfer::Start() {
  if (state_ == State::kQueued) state_ = State::kStarted;
}

void PrefillTransfer::OnBlockReady(int32_t ordinal, uint32_t payload_crc32c) {
  Ordinal* const found = Find(ordinal);
  if (found == nullptr || found->block != Block::kComputing) return;
  found->payload_crc32c = payload_crc32c;
  SetReady(found);
}

void PrefillTransfer::SetReady(Ordinal* ordinal) {
  ordinal->block = Block::kReady;
  ++num_ready_;
  search_from_ = std::min(search_from_, static_cast<size_t>(ordinal - ordinals_.data()));
}

void PrefillTransfer::OnFirstTokenSent() { first_token_sent_ = true; }

void PrefillTransfer::OnGrant(const Grant& grant) {
  if (state_ != State::kStarted) return;
  reservation_ = grant.reservation;
  state_ = State::kGranted;
}

void PrefillTransfer::OnResend(const Resend& resend) {
  Ordinal* const found = Find(resend.ordinal);
  if (found == nullptr) return;
  if (found->block == Block::kSent) {
    --num_sent_;
    SetReady(found);
  }
  // The peer can know that the frame was corrupt before we know that it has gone.
  if (found->block == Block::kInFlight) found->again = true;
}

void PrefillTransfer::OnRenew(int64_t now_us) {
  lease_until_us_ = std::max(lease_until_us_, now_us + options_.lease_us);
}

void PrefillTransfer::OnFrameSent(int32_t ordinal, bool ok) {
  Ordinal* const found = Find(ordinal);
  TANDEM_CHECK(found != nullptr && found->block == Block::kInFlight)
      << "block " << ordinal << " is not in flight";
  if (std::exchange(found->again, false)) {
    SetReady(found);
  } else {
    found->block = Block::kSent;
    ++num_sent_;
  }
  if (!ok) {
    End(absl::UnavailableError(absl::StrFormat("block %d could not be sent", ordinal)));
  }
}

void PrefillTransfer::End(absl::Status why) {
  if (ended()) return;
  state_ = State::kEnded;
  outcome_ = std::move(why);
}

void PrefillTransfer::Expire(int64_t now_us) {
  if (TANDEM_GUARD("source_lease", now_us < lease_until_us_)) return;
  End(absl::UnavailableError(absl::StrFormat(
      "lease not renewed for %d ms", (now_us - lease_until_us_ + options_.lease_us) / 1000)));
}

std::optional<FrameHeader> PrefillTransfer::TakeFrame() {
  if (!has_frame()) return std::nullopt;
  const auto ready =
      std::find_if(ordinals_.begin() + static_cast<ptrdiff_t>(search_from_), ordinals_.end(),
                   [](const Ordinal& o) { return o.block == Block::kReady; });
  TANDEM_CHECK(ready != ordinals_.end()) << num_ready_ << " ready blocks after " << search_from_;
  search_from_ = static_cast<size_t>(ready - ordinals_.begin()) + 1;
  --num_ready_;
  ready->block = Block::kInFlight;
  if (!ready->handed_over) ++num_handed_over_;
  ready->handed_over = true;
  FrameHeader header{
      .reservation = reservation_,
      .ordinal = static_cast<uint32_t>(options_.first_block + (ready - ordinals_.begin())),
      .length_bytes = static_cast<uint32_t>(options_.block_bytes)};
  header.crc32c = FrameChecksum(header, ready->payload_crc32c);
  return header;
}

std::optional<Done> PrefillTransfer::TakeDone() {
  const bool all = num_handed_over_ == static_cast<int32_t>(ordinals_.size());
  if (ended() || !all || !first_token_sent_ || done_taken_) return std::nullopt;
  done_taken_ = true;
  return Done{.job = options_.job, .num_frames = num_handed_over_};
}

void PrefillTransfer::AppendState(std::string* bytes) const {
  AppendBytes(state_, bytes);
  AppendBytes(reservation_.index, bytes);
  AppendBytes(reservation_.generation, bytes);
  AppendBytes(lease_until_us_, bytes);
  AppendBytes(first_token_sent_, bytes);
  AppendBytes(done_taken_, bytes);
  AppendBytes(outcome_.code(), bytes);
  for (const Ordinal& ordinal : ordinals_) {
    AppendBytes(ordinal.block, bytes);
    AppendBytes(ordinal.handed_over, bytes);
    AppendBytes(ordinal.again, bytes);
    AppendBytes(ordinal.payload_crc32c, bytes);
  }
}

}  // namespace tandem
