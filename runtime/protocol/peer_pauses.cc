#include "runtime/protocol/peer_pauses.h"

#include <algorithm>

namespace tandem {
namespace {

// Lives of workers that were paused once; more have not come back.
constexpr size_t kMaxPauses = 1024;

}  // namespace

std::string_view PauseReasonName(PauseReason reason) {
  switch (reason) {
    case PauseReason::kTimeout:
      return "timeout";
    case PauseReason::kLost:
      return "lost";
    case PauseReason::kSlow:
      return "slow";
  }
  return "";
}

bool PeerPauses::OnFailed(const WorkerId& peer, int64_t now_us) {
  if (Paused(peer, now_us)) return false;
  if (pauses_.size() >= kMaxPauses && !pauses_.contains(peer)) {
    std::erase_if(pauses_, [now_us](const auto& entry) { return entry.second.until_us <= now_us; });
  }
  Pause& pause = pauses_[peer];
  pause.length_us =
      std::clamp(2 * pause.length_us, times_.first_peer_pause_us, times_.max_peer_pause_us);
  pause.until_us = now_us + pause.length_us;
  return true;
}

bool PeerPauses::Paused(const WorkerId& peer, int64_t now_us) const {
  const auto pause = pauses_.find(peer);
  return pause != pauses_.end() && now_us < pause->second.until_us;
}

}  // namespace tandem
