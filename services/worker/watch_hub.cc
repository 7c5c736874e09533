#include "services/worker/watch_hub.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "services/server/limits.h"

namespace tandem {

namespace {

// A heartbeat is worth nothing behind so many others.
constexpr size_t kMaxQueuedBeforeHeartbeat = 16;

}  // namespace

// Found by others once its request has come.
class WatchHub::Watch final
    : public StreamReactor<EarlyReactor<proto::WatchRequest, proto::WatchEvent>,
                           proto::WatchEvent> {
 public:
  Watch(WatchHub* hub, grpc::CallbackServerContext* context)
      : StreamReactor(context, hub->calls_->budget(), hub->calls_, context), hub_(hub) {}

  void Begin() {
    if (const absl::Status status = hub_->Check(*request_); !status.ok()) return End(status);
    LogInfo("a router watches", {{"router", request_->router()}, {"watch", id_}});
    Publish(hub_->registration_);
    request_.reset();
    auto charge = hub_->calls_->budget()->Hold(client_, sizeof(EngineCommand));
    if (!charge.ok()) return End(charge.status());
    hub_->commands_->PushAlways(WatchOpened{id_, *std::move(charge)});
  }

  void Publish(const WatchUpdate& update) {
    proto::WatchEvent event;
    ToProto(update, &event);
    if (const absl::Status status = Push(std::move(event)); !status.ok()) End(status);
  }
  void PublishHeartbeat(const Heartbeat& heartbeat) {
    if (unsent() < kMaxQueuedBeforeHeartbeat) Publish(heartbeat);
  }
  // Events before the snapshot are part of it.
  void PublishSnapshot(const KvEvents& snapshot) {
    has_snapshot_ = true;
    PublishEvents(snapshot);
  }
  void PublishEvents(const KvEvents& events) {
    if (!has_snapshot_) return;
    for (const KvEvents& piece : SplitEvents(events, kHashesPerEvent)) Publish(piece);
  }
  void OnDone() override {
    hub_->watches_.Remove(id_);
    delete this;
  }

 private:
  void OnRequest(std::shared_ptr<const proto::WatchRequest> request) override {
    request_ = std::move(request);
    hub_->watches_.Open([this](uint64_t id) {
      id_ = id;
      return this;
    });
  }

  WatchHub* const hub_;
  uint64_t id_ = 0;
  std::shared_ptr<const proto::WatchRequest> request_;  // Until Begin.
  bool has_snapshot_ = false;                           // Engine thread.
};

absl::Status WatchHub::Check(const proto::WatchRequest& request) const {
  if (request.router().size() > static_cast<size_t>(kMaxNameBytes)) {
    return absl::InvalidArgumentError(absl::StrFormat("router: %d bytes of name, want at most %d",
                                                      request.router().size(), kMaxNameBytes));
  }
  if (ShareProtocol(
          {.protocol_min = request.protocol_min(), .protocol_max = request.protocol_max()},
          registration_.terms)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "protocol: the router speaks %d to %d, this worker %d to %d", request.protocol_min(),
      request.protocol_max(), registration_.terms.protocol_min, registration_.terms.protocol_max));
}

ServerReactor<proto::WatchEvent>* WatchHub::Open(grpc::CallbackServerContext* context) {
  auto* const watch = new Watch(this, context);
  watch->AwaitRequest();
  return watch;
}

void WatchHub::PublishSnapshot(uint64_t watch, const KvEvents& snapshot) {
  watches_.With(watch, [&](Watch* w) { w->PublishSnapshot(snapshot); });
}

void WatchHub::PublishEvents(const KvEvents& events) {
  if (events.empty()) return;
  watches_.ForEach([&](Watch* w) { w->PublishEvents(events); });
}

void WatchHub::PublishHeartbeat(const Heartbeat& heartbeat) {
  watches_.ForEach([&](Watch* w) { w->PublishHeartbeat(heartbeat); });
}

bool WatchHub::Flushed() const { return watches_.Flushed(); }
void WatchHub::CloseAll(const absl::Status& why) { watches_.CloseAll(why); }

}  // namespace tandem
