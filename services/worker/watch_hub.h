// The Watch streams of routers.
//
// Registration and heartbeats need nothing of the engine thread: a step that hangs cannot silence
// them. Cache events do: the snapshot of a new Watch is asked for with WatchOpened, and from then
// on it gets the changes.

#ifndef TANDEM_SERVICES_WORKER_WATCH_HUB_H_
#define TANDEM_SERVICES_WORKER_WATCH_HUB_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "services/server/convert.h"
#include "services/server/early_reactor.h"
#include "services/worker/command_queue.h"
#include "services/worker/stream_reactor.h"

namespace tandem {

class WatchHub {
 public:
  // The pointers outlive this.
  WatchHub(WorkerRegistration registration, OpenCalls* calls, CommandQueue* commands)
      : registration_(std::move(registration)), calls_(calls), commands_(commands) {}

  // The reactor of a new RPC.
  ServerReactor<proto::WatchEvent>* Open(grpc::CallbackServerContext* context);

  // Engine thread.
  void PublishSnapshot(uint64_t watch, const KvEvents& snapshot);
  void PublishEvents(const KvEvents& events);

  // Timer thread.
  void PublishHeartbeat(const Heartbeat& heartbeat);

  bool Flushed() const;  // Nothing waits to be written.
  void CloseAll(const absl::Status& why);

 private:
  class Watch;
  // OK if the router that asks speaks our protocol.
  absl::Status Check(const proto::WatchRequest& request) const;

  const WorkerRegistration registration_;
  OpenCalls* const calls_;
  CommandQueue* const commands_;
  StreamRegistry<Watch> watches_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WATCH_HUB_H_
