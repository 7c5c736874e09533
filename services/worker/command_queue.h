// One queue of everything that the threads around the engine ask of it, drained by its thread.

#ifndef TANDEM_SERVICES_WORKER_COMMAND_QUEUE_H_
#define TANDEM_SERVICES_WORKER_COMMAND_QUEUE_H_

#include "runtime/base/bounded_queue.h"
#include "runtime/worker/engine_command.h"

namespace tandem {

// New attempts use TryPush and are refused when it is full; everything else is PushAlways. Of what
// peers say a stream waits for its own (read_window.h).
using CommandQueue = BoundedQueue<EngineCommand>;

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_COMMAND_QUEUE_H_
