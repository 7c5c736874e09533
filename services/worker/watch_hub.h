// The Watch streams of routers.
//
// Registration and heartbeats need nothing of the engine thread: a step that hangs cannot silence
// them. Cache events do: the snapshot of a new Watch is asked for with WatchOpened, and from then
// on it gets the changes.

#ifndef TANDEM_SERVICES_WORKER_WATCH_HUB_H_
#define TANDEM_SERVICES_WORKER_WATCH_HUB_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>

#include "runtime/base/mutex.h"
#include "services/server/convert.h"
#include "services/worker/engine_command.h"

namespace tandem {

class WatchHub {
 public:
  // `commands` outlives this.
  WatchHub(WorkerRegistration registration, CommandQueue* commands)
      : registration_(std::move(registration)), commands_(commands) {}

  // The reactor of a new RPC.
  grpc::ServerWriteReactor<proto::WatchEvent>* Open(const proto::WatchRequest& request)
      EXCLUDES(mu_);

  // Engine thread.
  void PublishSnapshot(uint64_t watch, const KvEvents& snapshot) EXCLUDES(mu_);
  void PublishEvents(const KvEvents& events) EXCLUDES(mu_);

  // Timer thread.
  void PublishHeartbeat(const Heartbeat& heartbeat) EXCLUDES(mu_);

  void CloseAll(const absl::Status& why) EXCLUDES(mu_);

 private:
  class Watch;
  void Remove(uint64_t watch) EXCLUDES(mu_);

  const WorkerRegistration registration_;
  CommandQueue* const commands_;
  Mutex mu_;
  uint64_t next_watch_ GUARDED_BY(mu_) = 1;
  std::map<uint64_t, Watch*> watches_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WATCH_HUB_H_
