#include "runtime/protocol/peer_pauses.h"

namespace tandem {
namespace {

// A pause that is over is kept, since the next one is longer: up to so many. Routers name the
// peers: of twice as many one goes whatever it is.
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
  if (pauses_.size() >= kMaxPauses && !pauses_.contains(peer)) {
    std::erase_if(pauses_, [now_us](const auto& entry) { return !entry.second.Holds(now_us); });
    if (pauses_.size() >= 2 * kMaxPauses) pauses_.erase(pauses_.begin());
  }
  return pauses_[peer].Begin(times_.first_pause_us, times_.max_pause_us, now_us);
}

bool PeerPauses::Paused(const WorkerId& peer, int64_t now_us) const {
  const auto pause = pauses_.find(peer);
  return pause != pauses_.end() && pause->second.Holds(now_us);
}

}  // namespace tandem
