#include "runtime/protocol/decode_transfer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/guard.h"
#include "runtime/protocol/append_bytes.h"

namespace tandem {

DecodeTransfer::DecodeTransfer(const Options& options) : options_(options) {
  TANDEM_CHECK(0 <= options.first_block && options.first_block <= options.num_blocks)
      << "blocks " << options.first_block << " to " << options.num_blocks;
  const size_t promised = static_cast<size_t>(options.num_blocks - options.first_block);
  verified_.resize(promised);
  resends_.resize(promised);
}

bool DecodeTransfer::OnStart() {
  if (state_ != State::kPromised) return false;
  state_ = State::kStarted;
  return !verified_.empty();
}

void DecodeTransfer::OnAlive(int64_t now_us) { last_heard_us_ = now_us; }

void DecodeTransfer::OnRenew(int64_t block_us, int64_t stalled_us, int64_t now_us) {
  const bool moves = !done_ || now_us - std::max(block_us, done_us_) < stalled_us;
  if (TANDEM_GUARD("link_stalled", moves)) last_heard_us_ = now_us;
}

bool DecodeTransfer::OnFirstToken(int64_t now_us) {
  if (over()) return false;
  last_heard_us_ = now_us;
  if (!TANDEM_GUARD("first_token_once", !first_token_known_)) return false;
  first_token_known_ = true;
  CompleteIfAllArrived();
  return true;
}

void DecodeTransfer::OnDone(const Done& done, int64_t now_us) {
  if (over() || done_) return;
  last_heard_us_ = now_us;
  const int32_t promised = options_.num_blocks - options_.first_block;
  if (done.num_frames != promised) {
    Fail(absl::InternalError(
        absl::StrFormat("%d frames were sent for %d promised blocks", done.num_frames, promised)));
    return;
  }
  done_ = true;
  done_us_ = now_us;
  CompleteIfAllArrived();
}

Grant DecodeTransfer::OnGranted(Reservation reservation, int64_t now_us) {
  TANDEM_CHECK(state_ == State::kStarted) << "granted in state " << static_cast<int>(state_);
  state_ = State::kGranted;
  reservation_ = reservation;
  last_heard_us_ = now_us;
  return {.job = options_.job, .reservation = reservation};
}

std::optional<Resend> DecodeTransfer::OnFrame(const ReceivedFrame& frame, int64_t now_us) {
  if (state_ != State::kGranted) return std::nullopt;
  const size_t index = static_cast<size_t>(frame.ordinal - options_.first_block);
  TANDEM_CHECK(index < verified_.size()) << "block " << frame.ordinal;
  last_heard_us_ = now_us;
  switch (frame.outcome) {
    case FrameOutcome::kVerified:
      if (verified_[index] == 0) ++num_verified_;
      verified_[index] = 1;
      CompleteIfAllArrived();
      return std::nullopt;
    case FrameOutcome::kCorrupt:
      if (verified_[index] != 0) return std::nullopt;
      if (resends_[index] == kMaxResends) {
        Fail(absl::DataLossError(
            absl::StrFormat("block %d arrived corrupt %d times", frame.ordinal, kMaxResends + 1)));
        return std::nullopt;
      }
      ++resends_[index];
      return Resend{.job = options_.job, .ordinal = frame.ordinal};
    case FrameOutcome::kFailed:
      Fail(absl::UnavailableError(absl::StrFormat("the transport lost block %d", frame.ordinal)));
      return std::nullopt;
    case FrameOutcome::kOrphaned:
      return std::nullopt;
  }
  return std::nullopt;
}

void DecodeTransfer::Expire(int64_t now_us) {
  if (state_ != State::kGranted) return;
  const int64_t silent_us = now_us - last_heard_us_;
  if (TANDEM_GUARD("reservation_timeout", silent_us < options_.timeout_us)) return;
  Fail(absl::UnavailableError(absl::StrFormat("%d of %d blocks after %d ms of silence",
                                              num_verified_, verified_.size(), silent_us / 1000)));
}

bool DecodeTransfer::verified(int32_t ordinal) const {
  return verified_[static_cast<size_t>(ordinal - options_.first_block)] != 0;
}

int64_t DecodeTransfer::expires_at_us() const {
  return state_ == State::kGranted ? last_heard_us_ + options_.timeout_us
                                   : std::numeric_limits<int64_t>::max();
}

void DecodeTransfer::Fail(absl::Status why) {
  if (over()) return;
  state_ = State::kFailed;
  failure_ = std::move(why);
}

void DecodeTransfer::CompleteIfAllArrived() {
  if (over() || !done_ || !first_token_known_) return;
  const bool all = num_verified_ == static_cast<int32_t>(verified_.size());
  if (TANDEM_GUARD("commit_all_verified", all)) state_ = State::kComplete;
}

void DecodeTransfer::AppendState(std::string* bytes) const {
  AppendBytes(state_, bytes);
  AppendBytes(reservation_.index, bytes);
  AppendBytes(reservation_.generation, bytes);
  AppendBytes(last_heard_us_, bytes);
  AppendBytes(first_token_known_, bytes);
  AppendBytes(done_, bytes);
  AppendBytes(done_us_, bytes);
  AppendBytes(failure_.code(), bytes);
  for (size_t i = 0; i < verified_.size(); ++i) {
    AppendBytes(verified_[i], bytes);
    AppendBytes(resends_[i], bytes);
  }
}

}  // namespace tandem
