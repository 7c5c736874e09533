// Prefill workers that this decode worker does without for a while: their transfers fail, or cost
// more than they save. A pause doubles each time, until a transfer succeeds.
//
// Engine thread only.

#ifndef TANDEM_RUNTIME_PROTOCOL_PEER_PAUSES_H_
#define TANDEM_RUNTIME_PROTOCOL_PEER_PAUSES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "runtime/protocol/identity.h"
#include "runtime/protocol/pause.h"
#include "runtime/protocol/times.h"

namespace tandem {

enum class PauseReason : uint8_t {
  kTimeout,  // Granted blocks did not come.
  kLost,     // The session broke, or did not come about.
  kSlow,     // The peer's blocks took longer to come than computing them here would have.
};
inline constexpr size_t kNumPauseReasons = 3;
std::string_view PauseReasonName(PauseReason reason);  // "timeout", "lost", "slow"

class PeerPauses {
 public:
  explicit PeerPauses(const LivenessTimes& times) : times_(times) {}

  // True if that begins a pause; false during one, which is of transfers from before.
  bool OnFailed(const WorkerId& peer, int64_t now_us);
  void OnWorked(const WorkerId& peer) { pauses_.erase(peer); }
  bool Paused(const WorkerId& peer, int64_t now_us) const;

 private:
  const LivenessTimes times_;
  std::map<WorkerId, Pause> pauses_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_PEER_PAUSES_H_
