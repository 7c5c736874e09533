#include "services/worker/watch_hub.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "services/server/limits.h"

namespace tandem {

namespace {

// A router this far behind is cut off; it asks for a new snapshot.
constexpr size_t kMaxUnsentEvents = 4096;
// A heartbeat is worth nothing behind so many others.
constexpr size_t kMaxQueuedBeforeHeartbeat = 16;

}  // namespace

class WatchHub::Watch final
    : public StreamReactor<grpc::ServerWriteReactor<proto::WatchEvent>, proto::WatchEvent> {
 public:
  // `request` lives as long as the RPC.
  Watch(WatchHub* hub, uint64_t id, grpc::CallbackServerContext* context,
        const proto::WatchRequest* request)
      : StreamReactor(context, kMaxUnsentEvents), hub_(hub), id_(id), request_(request) {}

  void Begin() {
    if (const absl::Status status = hub_->Check(*request_); !status.ok()) return End(status);
    LogInfo("a router watches", {{"router", request_->router()}, {"watch", id_}});
    Publish(hub_->registration_);
    hub_->commands_->PushAlways(WatchOpened{id_});
  }

  void Publish(const WatchUpdate& update) {
    proto::WatchEvent event;
    ToProto(update, &event);
    if (!Push(std::move(event))) End(absl::ResourceExhaustedError("too many unread events"));
  }
  void PublishHeartbeat(const Heartbeat& heartbeat) {
    if (unsent() < kMaxQueuedBeforeHeartbeat) Publish(heartbeat);
  }
  // Events before the snapshot are part of it.
  void PublishSnapshot(const KvEvents& snapshot) {
    has_snapshot_ = true;
    Publish(snapshot);
  }
  void PublishEvents(const KvEvents& events) {
    if (has_snapshot_) Publish(events);
  }
  void OnDone() override {
    hub_->watches_.Remove(id_);
    delete this;
  }

 private:
  WatchHub* const hub_;
  const uint64_t id_;
  const proto::WatchRequest* const request_;
  bool has_snapshot_ = false;  // Engine thread.
};

absl::Status WatchHub::Check(const proto::WatchRequest& request) const {
  if (request.router().size() <= static_cast<size_t>(kMaxNameBytes) &&
      request.protocol_max() >= registration_.protocol_min &&
      request.protocol_min() <= registration_.protocol_max) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "protocol: the router speaks %d to %d, this worker %d to %d", request.protocol_min(),
      request.protocol_max(), registration_.protocol_min, registration_.protocol_max));
}

grpc::ServerWriteReactor<proto::WatchEvent>* WatchHub::Open(grpc::CallbackServerContext* context,
                                                            const proto::WatchRequest& request) {
  return watches_.Open([&](uint64_t id) { return new Watch(this, id, context, &request); });
}

void WatchHub::PublishSnapshot(uint64_t watch, const KvEvents& snapshot) {
  watches_.With(watch, [&](Watch* w) { w->PublishSnapshot(snapshot); });
}

void WatchHub::PublishEvents(const KvEvents& events) {
  watches_.ForEach([&](Watch* w) { w->PublishEvents(events); });
}

void WatchHub::PublishHeartbeat(const Heartbeat& heartbeat) {
  watches_.ForEach([&](Watch* w) { w->PublishHeartbeat(heartbeat); });
}

void WatchHub::CloseAll(const absl::Status& why) { watches_.CloseAll(why); }

}  // namespace tandem
