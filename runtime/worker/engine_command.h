// What the threads around the engine ask of it.

#ifndef TANDEM_RUNTIME_WORKER_ENGINE_COMMAND_H_
#define TANDEM_RUNTIME_WORKER_ENGINE_COMMAND_H_

#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "runtime/engine/attempt.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/peer_messages.h"
#include "runtime/protocol/reservation_table.h"
#include "runtime/protocol/router_messages.h"

namespace tandem {

// Every command that a peer can cause has a charge, or is one of few.
struct FromRouter {
  SessionId session = 0;
  RouterCommand message;
  CommandCharge charge;
};
struct RouterLost {
  SessionId session = 0;
  CommandCharge charge;  // The lost call's.
};
struct FromDecode {
  SessionId session = 0;
  DecodeToPrefill message;
  CommandCharge charge;
};
struct DecodeLost {
  SessionId session = 0;
  CommandCharge charge;  // The lost call's.
};
struct FromPrefill {
  WorkerId worker;
  PrefillToDecode message;
  CommandCharge charge;
};
// One for each session, of which there are kMaxPrefillPeers at a time.
struct PrefillLost {
  WorkerId worker;
  absl::Status why;
};
// One for each block that a transfer sends, which is pinned until then.
struct FrameSent {
  uint64_t send_id = 0;
  bool ok = false;
};
// One for each block that was granted, and a few that came damaged.
struct FrameArrived {
  ReceivedFrame frame;
};
// A new Watch wants the snapshot of the prefix cache.
struct WatchOpened {
  uint64_t watch = 0;
  CommandCharge charge;
};
struct DrainEngine {};  // Once.

using EngineCommand = std::variant<FromRouter, RouterLost, FromDecode, DecodeLost, FromPrefill,
                                   PrefillLost, FrameSent, FrameArrived, WatchOpened, DrainEngine>;

}  // namespace tandem

#endif  // TANDEM_RUNTIME_WORKER_ENGINE_COMMAND_H_
