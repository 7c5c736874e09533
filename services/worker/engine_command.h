// What the threads around the engine ask of it. One queue, drained by the engine thread.

#ifndef TANDEM_SERVICES_WORKER_ENGINE_COMMAND_H_
#define TANDEM_SERVICES_WORKER_ENGINE_COMMAND_H_

#include <cstdint>
#include <memory>
#include <variant>

#include "absl/status/status.h"
#include "runtime/base/bounded_queue.h"
#include "runtime/base/memory_budget.h"
#include "runtime/protocol/kv_receiver.h"
#include "services/server/convert.h"

namespace tandem {

struct FromRouter {
  SessionId session = 0;
  RouterCommand message;
  std::shared_ptr<MemoryBudget::Holding> holding;  // Of a Submit that waits here.
};
struct RouterLost {
  SessionId session = 0;
};
struct FromDecode {
  SessionId session = 0;
  DecodeToPrefill message;
  std::shared_ptr<MemoryBudget::Holding> holding;  // Of a Submit that waits here.
};
struct DecodeLost {
  SessionId session = 0;
};
struct FromPrefill {
  WorkerId worker;
  PrefillToDecode message;
};
struct PrefillLost {
  WorkerId worker;
  absl::Status why;
};
struct FrameSent {
  uint64_t send_id = 0;
  bool ok = false;
};
struct FrameArrived {
  ReceivedFrame frame;
};
// A new Watch wants the snapshot of the prefix cache.
struct WatchOpened {
  uint64_t watch = 0;
};
struct DrainEngine {};

using EngineCommand = std::variant<FromRouter, RouterLost, FromDecode, DecodeLost, FromPrefill,
                                   PrefillLost, FrameSent, FrameArrived, WatchOpened, DrainEngine>;

// New attempts use TryPush and are refused when it is full; everything else is PushAlways.
using CommandQueue = BoundedQueue<EngineCommand>;

// What a Submit is told that found the queue full: steps empty it, whatever they compute.
inline constexpr int64_t kRetryFullQueueUs = 100'000;

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_ENGINE_COMMAND_H_
