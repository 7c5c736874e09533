#include "services/server/health_service.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace tandem {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

namespace {

constexpr std::chrono::milliseconds kPollPeriod{100};

grpc::Status Leaving() { return {grpc::StatusCode::UNAVAILABLE, "the process ends"}; }

}  // namespace

// One open Watch. Kept by the service until OnDone.
class HealthService::Watcher final : public EarlyReactor<HealthCheckRequest, HealthCheckResponse> {
 public:
  Watcher(HealthService* service, grpc::CallbackServerContext* context)
      : EarlyReactor(service->calls(), context), service_(service) {}

  // Writes the present status unless it is what the client knows already.
  void Show() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (!asked_) return;
    wanted_ = StatusNow(ready_);
    WriteNext();
  }

  void End(const grpc::Status& status) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    ended_ = true;
    Finish(status);
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override {
    std::shared_ptr<Watcher> last;  // Released after the lock.
    MutexLock lock(&service_->mu_);
    const auto it = std::find_if(service_->watchers_.begin(), service_->watchers_.end(),
                                 [this](const auto& watcher) { return watcher.get() == this; });
    last = *it;
    service_->watchers_.erase(it);
  }

 private:
  void OnRequest(std::shared_ptr<const HealthCheckRequest> request) override EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      asked_ = true;
      ready_ = service_->Find(request->service());
    }
    Show();
  }

  void OnWritten(bool ok) override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    writing_ = false;
    if (ok) WriteNext();
    if (!writing_ && !ended_) AwaitEvent();
  }

  void WriteNext() REQUIRES(mu_) {
    if (writing_ || ended_ || !wanted_.has_value() || wanted_ == shown_) return;
    shown_ = wanted_;
    response_.set_status(*wanted_);
    writing_ = true;
    Write(&response_);
  }

  HealthService* const service_;
  Mutex mu_;
  HealthCheckResponse response_ GUARDED_BY(mu_);
  std::optional<HealthCheckResponse::ServingStatus> wanted_ GUARDED_BY(mu_), shown_ GUARDED_BY(mu_);
  bool asked_ GUARDED_BY(mu_) = false;            // The request has come...
  const Ready* ready_ GUARDED_BY(mu_) = nullptr;  // ...for this; null: for nothing of ours.
  bool writing_ GUARDED_BY(mu_) = false;
  bool ended_ GUARDED_BY(mu_) = false;
};

HealthService::HealthService(std::map<std::string, Ready> services, OpenCalls* calls)
    : EarlyService(calls),
      services_(std::move(services)),
      poll_("health", kPollPeriod, [this] { Show(); }) {
  AddUnary<HealthCheckRequest, HealthCheckResponse>(
      "/grpc.health.v1.Health/Check",
      [this](const HealthCheckRequest& request, HealthCheckResponse* response) {
        response->set_status(StatusNow(Find(request.service())));
        return response->status() == HealthCheckResponse::SERVICE_UNKNOWN
                   ? absl::NotFoundError("unknown service")
                   : absl::OkStatus();
      });
  AddMethod<HealthCheckResponse>(
      "/grpc.health.v1.Health/Watch",
      [this](grpc::CallbackServerContext* context) { return BeginWatch(context); });
}

HealthService::Watcher* HealthService::BeginWatch(grpc::CallbackServerContext* context) {
  const auto watcher = std::make_shared<Watcher>(this, context);
  bool stopping = false;
  {
    MutexLock lock(&mu_);
    watchers_.insert(watcher);
    stopping = stopping_;
  }
  if (stopping) {
    watcher->End(Leaving());
  } else {
    watcher->AwaitRequest();
  }
  return watcher.get();
}

const HealthService::Ready* HealthService::Find(const std::string& service) const {
  const auto found = services_.find(service);
  return found == services_.end() ? nullptr : &found->second;
}

HealthService::Status HealthService::StatusNow(const Ready* ready) {
  if (ready == nullptr) return HealthCheckResponse::SERVICE_UNKNOWN;
  return (*ready)() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

HealthService::~HealthService() { Stop(); }

void HealthService::Stop() {
  std::set<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    watchers = watchers_;
  }
  poll_.Stop();
  for (const auto& watcher : watchers) watcher->End(Leaving());
}

void HealthService::Show() {
  std::set<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(&mu_);
    watchers = watchers_;
  }
  for (const auto& watcher : watchers) watcher->Show();
}

}  // namespace tandem
