#include "services/router/grpc/health_service.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace tandem {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

namespace {

constexpr std::chrono::milliseconds kPollPeriod{100};

}  // namespace

// One open Watch. Kept by the service until OnDone.
class HealthService::Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService* service, bool is_known) : known(is_known), service_(service) {}

  // Writes `status` unless it is what the client knows already.
  void Show(HealthCheckResponse::ServingStatus status) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    wanted_ = status;
    WriteNext();
  }

  void End(const grpc::Status& status) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (!std::exchange(ended_, true)) Finish(status);
  }

  void OnWriteDone(bool ok) override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    writing_ = false;
    if (ok) WriteNext();
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

  const bool known;

 private:
  void WriteNext() REQUIRES(mu_) {
    if (writing_ || ended_ || !wanted_.has_value() || wanted_ == shown_) return;
    shown_ = wanted_;
    response_.set_status(*wanted_);
    writing_ = true;
    StartWrite(&response_);
  }

  HealthService* const service_;
  Mutex mu_;
  HealthCheckResponse response_ GUARDED_BY(mu_);
  std::optional<HealthCheckResponse::ServingStatus> wanted_ GUARDED_BY(mu_), shown_ GUARDED_BY(mu_);
  bool writing_ GUARDED_BY(mu_) = false;
  bool ended_ GUARDED_BY(mu_) = false;
};

HealthService::HealthService(std::set<std::string> services, std::function<bool()> ready)
    : services_(std::move(services)), ready_(std::move(ready)), thread_([this] { Poll(); }) {}

HealthService::~HealthService() { Stop(); }

void HealthService::Stop() {
  std::set<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    watchers = watchers_;
  }
  stop_.Signal();
  if (thread_.joinable()) thread_.join();
  for (const auto& watcher : watchers) {
    watcher->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router ends"));
  }
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!Knows(request->service())) {
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "unknown service"));
    return reactor;
  }
  response->set_status(ready_() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext* context, const HealthCheckRequest* request) {
  const auto watcher = std::make_shared<Watcher>(this, Knows(request->service()));
  bool stopping = false;
  {
    MutexLock lock(&mu_);
    watchers_.insert(watcher);
    stopping = stopping_;
  }
  if (stopping) {
    watcher->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router ends"));
  } else {
    watcher->Show(!watcher->known ? HealthCheckResponse::SERVICE_UNKNOWN
                  : ready_()      ? HealthCheckResponse::SERVING
                                  : HealthCheckResponse::NOT_SERVING);
  }
  return watcher.get();
}

void HealthService::Poll() {
  pthread_setname_np(pthread_self(), "health");
  while (true) {
    std::set<std::shared_ptr<Watcher>> watchers;
    {
      MutexLock lock(&mu_);
      if (!stopping_) stop_.WaitFor(&mu_, kPollPeriod);
      if (stopping_) return;
      watchers = watchers_;
    }
    if (watchers.empty()) continue;
    const auto status = ready_() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
    for (const auto& watcher : watchers) {
      if (watcher->known) watcher->Show(status);
    }
  }
}

}  // namespace tandem
