#include "services/worker/watch_hub.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "services/server/limits.h"
#include "services/server/status_proto.h"
#include "services/worker/write_queue.h"

namespace tandem {

namespace {

// A router this far behind is cut off; it asks for a new snapshot.
constexpr size_t kMaxUnsentEvents = 4096;
// A heartbeat is worth nothing behind so many others.
constexpr size_t kMaxQueuedBeforeHeartbeat = 16;

}  // namespace

class WatchHub::Watch final : public grpc::ServerWriteReactor<proto::WatchEvent> {
 public:
  Watch(WatchHub* hub, uint64_t id) : hub_(hub), id_(id), writes_(this, kMaxUnsentEvents) {}

  void Publish(const WatchUpdate& update) {
    proto::WatchEvent event;
    ToProto(update, &event);
    if (!writes_.Push(std::move(event)))
      End(absl::ResourceExhaustedError("too many unread events"));
  }
  void PublishHeartbeat(const Heartbeat& heartbeat) {
    if (writes_.size() < kMaxQueuedBeforeHeartbeat) Publish(heartbeat);
  }
  // Events before the snapshot are part of it.
  void PublishSnapshot(const KvEvents& snapshot) {
    has_snapshot_ = true;
    Publish(snapshot);
  }
  void PublishEvents(const KvEvents& events) {
    if (has_snapshot_) Publish(events);
  }
  void End(const absl::Status& why) {
    if (ended_.exchange(true)) return;
    writes_.Close();
    Finish(ToGrpcStatus(why));
  }

  void OnWriteDone(bool ok) override { writes_.OnWriteDone(ok); }
  void OnCancel() override { End(absl::CancelledError("the router left")); }
  void OnDone() override {
    hub_->Remove(id_);
    delete this;
  }

 private:
  WatchHub* const hub_;
  const uint64_t id_;
  WriteQueue<grpc::ServerWriteReactor<proto::WatchEvent>, proto::WatchEvent> writes_;
  bool has_snapshot_ = false;  // Engine thread.
  std::atomic<bool> ended_{false};
};

grpc::ServerWriteReactor<proto::WatchEvent>* WatchHub::Open(const proto::WatchRequest& request) {
  MutexLock lock(&mu_);
  const uint64_t id = next_watch_++;
  auto* const watch = new Watch(this, id);
  watches_.emplace(id, watch);
  if (request.router().size() > static_cast<size_t>(kMaxNameBytes) ||
      request.protocol_max() < registration_.protocol_min ||
      request.protocol_min() > registration_.protocol_max) {
    watch->End(absl::FailedPreconditionError(absl::StrFormat(
        "protocol: the router speaks %d to %d, this worker %d to %d", request.protocol_min(),
        request.protocol_max(), registration_.protocol_min, registration_.protocol_max)));
    return watch;
  }
  LogInfo("a router watches", {{"router", request.router()}, {"watch", id}});
  watch->Publish(registration_);
  commands_->PushAlways(WatchOpened{id});
  return watch;
}

void WatchHub::PublishSnapshot(uint64_t watch, const KvEvents& snapshot) {
  MutexLock lock(&mu_);
  const auto found = watches_.find(watch);
  if (found != watches_.end()) found->second->PublishSnapshot(snapshot);
}

void WatchHub::PublishEvents(const KvEvents& events) {
  MutexLock lock(&mu_);
  for (const auto& [id, watch] : watches_) watch->PublishEvents(events);
}

void WatchHub::PublishHeartbeat(const Heartbeat& heartbeat) {
  MutexLock lock(&mu_);
  for (const auto& [id, watch] : watches_) watch->PublishHeartbeat(heartbeat);
}

void WatchHub::CloseAll(const absl::Status& why) {
  MutexLock lock(&mu_);
  for (const auto& [id, watch] : watches_) watch->End(why);
}

void WatchHub::Remove(uint64_t watch) {
  MutexLock lock(&mu_);
  watches_.erase(watch);
}

}  // namespace tandem
